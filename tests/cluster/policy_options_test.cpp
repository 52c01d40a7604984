// --policy: what each policy makes of its options, and that it refuses those it does not honour.
#include "cluster/prefill/policy_options.h"

#include <gtest/gtest.h>

#include <array>
#include <sstream>
#include <string>
#include <vector>

#include "cluster/prefill/policy_table.h"
#include "cluster/prefill/prefill_options.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

using Arguments = std::vector<std::string>;

PrefillOptions parse(Arguments arguments) {
  arguments.insert(arguments.begin(), {"--planted", "1k"});
  return parse_prefill_options(arguments, {});
}

// The error line of `--planted 1k` and these further arguments, or "".
std::string refusal_of(const Arguments& arguments) {
  try {
    parse(arguments);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput) << error.what();
    return error.what();
  }
}

AttentionPolicy stored() {
  AttentionPolicy policy;
  policy.window = 256;
  policy.topk = 8;
  return policy;
}

AttentionPolicy applied(Arguments arguments) { return parse(std::move(arguments)).policy.apply(stored()); }

TEST(PolicyOptions, policies_of_a_score) {
  const AttentionPolicy hils = applied({});
  EXPECT_EQ(hils.scorer, Scorer::kHils);
  EXPECT_EQ(hils.window, 256);
  EXPECT_EQ(hils.topk, 8);
  EXPECT_EQ(hils.choice, Choice::kGroup);
  EXPECT_EQ(hils.fusion, Fusion::kHierarchical);
  EXPECT_EQ(applied({"--policy", "oracle", "--choice", "all"}).choice, Choice::kAll);

  const AttentionPolicy moba = applied({"--policy", "moba", "--topk", "3"});
  EXPECT_EQ(moba.scorer, Scorer::kMean);
  EXPECT_EQ(moba.window, 0);  // the current chunk, whatever window the file names
  EXPECT_EQ(moba.topk, 3);
  EXPECT_EQ(moba.choice, Choice::kHead);
  EXPECT_EQ(moba.fusion, Fusion::kUnion);
  EXPECT_EQ(applied({"--policy", "quest"}).scorer, Scorer::kQuest);
  const AttentionPolicy landmark = applied({"--policy", "landmark", "--choice", "group"});
  EXPECT_EQ(landmark.scorer, Scorer::kLandmark);
  EXPECT_EQ(landmark.choice, Choice::kGroup);
  EXPECT_EQ(landmark.fusion, Fusion::kHierarchical);
}

TEST(PolicyOptions, policies_of_a_window) {
  const AttentionPolicy window = applied({"--policy", "window", "--window", "100"});
  EXPECT_EQ(window.window, 100);
  EXPECT_EQ(window.edge, WindowEdge::kToken);
  EXPECT_FALSE(window.selects());
  EXPECT_EQ(applied({"--policy", "sinks"}).sinks, 4);
  EXPECT_EQ(applied({"--policy", "sinks", "--sinks", "7"}).sinks, 7);
  EXPECT_THROW(applied({"--policy", "sinks", "--sinks", "0"}), Error);
  const AttentionPolicy xl = applied({"--policy", "xl", "--segment", "64", "--memory", "32"});
  EXPECT_EQ(xl.edge, WindowEdge::kSegment);
  EXPECT_EQ(xl.segment, 64);
  EXPECT_EQ(xl.window, 32);
  EXPECT_THROW(applied({"--policy", "xl"}), Error);
}

// Values that each option takes, whatever the policy.
Arguments with_value(const std::string& option) {
  if (option == "--alibi") return {option};
  if (option == "--choice") return {option, "head"};
  if (option == "--landmark-positions") return {option, "true"};
  if (option == "--merge") return {option, "auto"};
  return {option, "1"};
}

TEST(PolicyOptions, a_policy_refuses_the_options_of_the_others) {
  for (const std::string option :
       {"--topk", "--window", "--sinks", "--choice", "--merge", "--segment", "--memory", "--landmark-positions"}) {
    for (const PolicyRow& row : policy_table()) {
      Arguments arguments = {"--policy", std::string(row.name)};
      for (const std::string& word : with_value(option)) arguments.push_back(word);
      const std::string cell = std::string(row.options) + " ";
      const std::string refusal = refusal_of(arguments);
      const bool refused = refusal.find("has no meaning with --policy " + std::string(row.name)) != std::string::npos &&
                           refusal.find(option + " = ") == 0;
      EXPECT_NE(refused, cell.find(option + " ") != std::string::npos) << row.name << " " << option << ": " << refusal;
    }
  }
}

TEST(PolicyOptions, every_option_of_the_table_is_one_of_prefill) {
  const auto known = prefill_descriptions();
  for (const PolicyRow& row : policy_table()) {
    std::istringstream cell{std::string(row.options)};
    for (std::string word; cell >> word;) {
      ASSERT_EQ(word.substr(0, 2), "--") << row.name;
      EXPECT_NE(known.find_nothrow(word.substr(2), false), nullptr) << row.name << " " << word;
    }
  }
}

TEST(PolicyOptions, what_one_form_of_selection_needs_refuses_the_others_by_name) {
  EXPECT_EQ(refusal_of({"--policy", "moba", "--snapshot", "kept"}), "--snapshot = kept does not go with --policy moba");
  EXPECT_EQ(refusal_of({"--choice", "head", "--backend", "cuda"}),
            "--backend = cuda does not go with --policy hils --choice head");
  EXPECT_EQ(refusal_of({"--policy", "mean", "--snapshot", "kept"}), "");
  EXPECT_EQ(refusal_of({"--policy", "window", "--backend", "cuda"}),
            "--backend = cuda does not go with --policy window");
}

// The error line of `--input layer --policy landmark --landmark-positions stingy` and these further arguments, or "".
std::string stingy_refusal_of(Arguments arguments) {
  arguments.insert(arguments.begin(), {"--input", "layer", "--policy", "landmark", "--landmark-positions", "stingy"});
  try {
    parse_prefill_options(arguments, {});
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput) << error.what();
    return error.what();
  }
}

TEST(PolicyOptions, stingy_positions_need_rotation_and_refuse_what_knows_other_positions) {
  EXPECT_EQ(applied({"--policy", "landmark"}).landmark_positions, LandmarkPositions::kTrue);
  const PrefillOptions options = parse_prefill_options(
      {"--input", "layer", "--policy", "landmark", "--landmark-positions", "stingy", "--rope", "rope"}, {});
  EXPECT_EQ(options.policy.apply(stored()).landmark_positions, LandmarkPositions::kStingy);
  EXPECT_EQ(stingy_refusal_of({}), "--landmark-positions = stingy needs --rope: it moves keys by rotating them");
  EXPECT_EQ(stingy_refusal_of({"--rope", "rope", "--recall", "0.5"}),
            "--recall = 0.5 does not go with --landmark-positions = stingy");
  EXPECT_EQ(stingy_refusal_of({"--rope", "rope", "--choice", "group", "--snapshot", "kept"}),
            "--snapshot = kept does not go with --landmark-positions = stingy");
  EXPECT_EQ(stingy_refusal_of({"--rope", "rope", "--choice", "group", "--reuse", "kept"}),
            "--reuse = kept does not go with --landmark-positions = stingy");
  for (const std::string backend : {"cuda", "reference"}) {
    EXPECT_EQ(stingy_refusal_of({"--rope", "rope", "--choice", "group", "--backend", backend}),
              "--backend = " + backend + " does not go with --landmark-positions = stingy; limit: cpu");
  }
}

TEST(PolicyOptions, dense_takes_its_own_merges_and_refuses_what_chooses) {
  EXPECT_FALSE(parse_prefill_options({"--planted", "1k"}, {}).dense);
  EXPECT_FALSE(parse_prefill_options({"--planted", "1k", "--policy", "hils"}, {}).dense);
  const auto options = parse_prefill_options(
      {"--planted", "1k", "--policy", "dense", "--merge", "ring-ulysses", "--ulysses-ranks", "2"}, {});
  ASSERT_TRUE(options.dense);
  EXPECT_EQ(options.dense->strategy, runtime::dense::Strategy::kRingUlysses);
  EXPECT_EQ(options.dense->ulysses_ranks, 2);
  const auto by_default = parse_prefill_options({"--planted", "1k", "--policy", "dense"}, {});
  EXPECT_EQ(by_default.dense->strategy, runtime::dense::Strategy::kAuto);
  for (const Arguments& refused : std::initializer_list<Arguments>{{"--topk", "4"},
                                                                   {"--window", "64"},
                                                                   {"--sinks", "1"},
                                                                   {"--choice", "head"},
                                                                   {"--snapshot", "kept"},
                                                                   {"--reuse", "kept"},
                                                                   {"--digest"},
                                                                   {"--transport", "rma"},
                                                                   {"--merge", "scores"},
                                                                   {"--ulysses-ranks", "2"},
                                                                   {"--backend", "cuda"}}) {
    Arguments arguments = {"--policy", "dense"};
    arguments.insert(arguments.end(), refused.begin(), refused.end());
    EXPECT_NE(refusal_of(arguments).find(refused[0]), std::string::npos) << refusal_of(arguments);
  }
  EXPECT_NE(refusal_of({"--merge", "ring"}).find("--merge = ring"), std::string::npos);
  EXPECT_EQ(refusal_of({"--ulysses-ranks", "2"}), "--ulysses-ranks = 2 has no meaning with --policy hils");
}

TEST(RecallOptions, are_a_share_of_the_queries_of_the_sparse_engine) {
  EXPECT_EQ(parse({}).recall, std::nullopt);
  EXPECT_EQ(parse({"--recall", "0.25"}).recall, 0.25);
  EXPECT_EQ(parse({"--recall", "1", "--policy", "window"}).recall, 1.0);
  EXPECT_EQ(refusal_of({"--recall", "0"}), "--recall = 0 is not a number above 0 and at most 1");
  EXPECT_EQ(refusal_of({"--recall", "1", "--policy", "dense"}), "--recall = 1 has no meaning with --policy dense");
  EXPECT_EQ(refusal_of({"--recall", "1", "--backend", "cuda"}),
            "--recall = 1 does not go with --backend cuda; limit: cpu");
}

TEST(LandmarkOptions, need_a_tensor_and_landmarks_that_nobody_keeps) {
  const auto of_file = [](Arguments arguments) {
    arguments.insert(arguments.begin(), {"--input", "layer.safetensors", "--landmark-query", "shared"});
    try {
      return std::string(name_of(parse_prefill_options(arguments, {}).landmark_query));
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(parse({}).landmark_query, runtime::LandmarkQuery::kSlot);
  EXPECT_EQ(of_file({}), "shared");
  EXPECT_EQ(of_file({"--backend", "reference"}), "shared");
  EXPECT_EQ(of_file({"--policy", "mean"}), "--landmark-query = shared has no meaning with --policy mean");
  EXPECT_EQ(of_file({"--policy", "dense"}), "--landmark-query = shared has no meaning with --policy dense");
  EXPECT_EQ(of_file({"--snapshot", "kept"}),
            "--landmark-query = shared does not go with --snapshot: decoding builds landmarks of slots");
  EXPECT_EQ(of_file({"--backend", "cuda"}),
            "--landmark-query = shared does not go with --backend cuda: limit: cpu or reference");
  EXPECT_EQ(refusal_of({"--landmark-query", "chunk"}),
            "--landmark-query = chunk does not go with --planted: a generated layer has no such tensor");
  EXPECT_EQ(refusal_of({"--calibrate"}),
            "--calibrate does not go with --planted: a generated layer has no hidden states");
  EXPECT_EQ(refusal_of({"--calibrate", "--policy", "mean"}), "--calibrate = true has no meaning with --policy mean");
  EXPECT_EQ(refusal_of({"--landmark-query", "token"}), "--landmark-query = token is not one of slot, chunk, shared");
}

TEST(PolicyOptions, nsa_takes_gates) {
  EXPECT_FALSE(parse_prefill_options({"--planted", "1k"}, {}).nsa);
  const auto options = parse_prefill_options({"--planted", "1k", "--policy", "nsa", "--gates", "0.5,0,1"}, {});
  ASSERT_TRUE(options.nsa);
  EXPECT_EQ(options.nsa->gates, (std::array<float, 3>{0.5f, 0.0f, 1.0f}));
  EXPECT_FALSE(parse_prefill_options({"--planted", "1k", "--policy", "nsa"}, {}).nsa->gates);
  for (const std::string gates : {"1", "1,1", "1,1,1,1", "1,,1", "1,1,", "2,0,0", "-1,0,0", "nan,0,0", "a,b,c"}) {
    EXPECT_EQ(refusal_of({"--policy", "nsa", "--gates", gates}),
              "--gates = " + gates + " is not a list of 3 numbers in [0, 1]");
  }
}

TEST(PolicyOptions, compressive_takes_slots_and_rate) {
  const auto options = parse_prefill_options({"--planted", "1k", "--policy", "compressive", "--segment", "1k",
                                              "--memory", "96", "--compressed-slots", "0", "--compression-rate", "8"},
                                             {});
  ASSERT_TRUE(options.compressive);
  EXPECT_EQ(options.compressive->segment, 1024);
  EXPECT_EQ(options.policy.window, 96);
  EXPECT_EQ(options.compressive->slots, 0);
  EXPECT_EQ(options.compressive->rate, 8);
  EXPECT_EQ(refusal_of({"--policy", "compressive"}), "--policy compressive needs --segment TOKENS");
  EXPECT_EQ(refusal_of({"--policy", "compressive", "--segment", "64", "--compression-rate", "0"}),
            "--compression-rate = 0 is not a whole number in [1, 1024]");
  for (const Arguments& refused : std::initializer_list<Arguments>{{"--topk", "4"},
                                                                   {"--window", "64"},
                                                                   {"--digest"},
                                                                   {"--merge", "scores"},
                                                                   {"--snapshot", "kept"},
                                                                   {"--reuse", "kept"},
                                                                   {"--backend", "cuda"}}) {
    Arguments arguments = {"--policy", "compressive", "--segment", "64"};
    arguments.insert(arguments.end(), refused.begin(), refused.end());
    EXPECT_NE(refusal_of(arguments).find(refused[0]), std::string::npos) << refusal_of(arguments);
  }
}

}  // namespace
}  // namespace ringmark::cluster
