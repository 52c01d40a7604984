// What --policy dilated and --policy logo are told by their options, and the file that keeps a threshold.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cluster/prefill/controller_file.h"
#include "cluster/prefill/prefill_options.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "tests/kvstore/temporary_folder.h"

namespace ringmark::cluster {
namespace {

using runtime::logo::ControllerSettings;
using runtime::logo::ThresholdController;

PrefillOptions parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"--planted", "1k"});
  return parse_prefill_options(arguments, {});
}

TEST(DilatedOptions, are_pairs_in_the_order_given) {
  const PrefillOptions options = parse({"--policy", "dilated", "--dilation", "2k:4,64:1"});
  ASSERT_TRUE(options.dilated);
  ASSERT_EQ(options.dilated->dilations.size(), 2u);
  EXPECT_EQ(options.dilated->dilations[0].segment, 2048);
  EXPECT_EQ(options.dilated->dilations[0].rate, 4);
  EXPECT_EQ(options.dilated->dilations[1].segment, 64);
  EXPECT_EQ(options.dilated->dilations[1].rate, 1);
}

TEST(DilatedOptions, lists_that_are_none_are_refused) {
  for (const char* text : {"", ",", "64", "64:", ":1", "64:1,", "64:1:1", "-1:1", "64:0", "1:64", "64:1;8:1"}) {
    EXPECT_THROW(parse({"--policy", "dilated", "--dilation", text}), Error) << text;
  }
}

TEST(LogoOptions, take_a_threshold_or_a_target) {
  const PrefillOptions fixed = parse({"--policy", "logo", "--threshold", "-0.25"});
  ASSERT_TRUE(fixed.logo);
  EXPECT_EQ(fixed.logo->threshold, -0.25);
  EXPECT_FALSE(fixed.logo->controller);
  EXPECT_EQ(fixed.logo->strategy, runtime::dense::Strategy::kAllGather);
  const PrefillOptions follows = parse({"--policy", "logo", "--target-ratio", "0.3", "--controller", "state.json",
                                        "--threshold-step", "0.01", "--merge", "pass-q"});
  ASSERT_TRUE(follows.logo && follows.logo->controller);
  EXPECT_FALSE(follows.logo->threshold);
  EXPECT_EQ(follows.logo->controller->target_ratio, 0.3);
  EXPECT_EQ(follows.logo->controller->threshold_step, 0.01);
  EXPECT_EQ(follows.logo->controller->mask_steps, 5000);
  EXPECT_EQ(follows.logo->controller_file, "state.json");
  EXPECT_EQ(follows.logo->strategy, runtime::dense::Strategy::kPassQ);
}

// Rank 0 reads; all have its numbers.
TEST(ControllerFile, keeps_every_bit_for_all_ranks) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("state.json");
  const ControllerSettings settings{.target_ratio = 0.5, .threshold_step = 0.1, .mask_steps = 7};
  comm::run_thread_ranks(3, [&](comm::Communicator& ranks) {
    EXPECT_EQ(read_controller(ranks, path, settings).threshold(), ThresholdController(settings).threshold());
  });
  ThresholdController controller(settings);
  for (int step = 0; step < 9; ++step) controller.observe(3, 4);
  write_controller(path, controller);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"state.json"});
  comm::run_thread_ranks(3, [&](comm::Communicator& ranks) {
    const ThresholdController read = read_controller(ranks, path, settings);
    EXPECT_EQ(read.threshold(), controller.threshold());
    EXPECT_EQ(read.steps(), 9);
  });
}

TEST(ControllerFile, what_is_none_is_refused_with_its_path) {
  const test::TemporaryFolder folder;
  const auto alone = comm::make_single_rank();
  for (const char* text : {"", "{}", "[]", R"({"threshold": 0.5})", R"({"threshold": "x", "steps": 1})",
                           R"({"threshold": 0.5, "steps": -1})", R"({"threshold": 0.5, "steps": 1, "more": 2})",
                           R"({"threshold": 1e300, "steps": 1})"}) {
    const std::string path = folder.write("state.json", text);
    try {
      read_controller(*alone, path, {});
      ADD_FAILURE() << text << " is accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput) << text;
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace ringmark::cluster
