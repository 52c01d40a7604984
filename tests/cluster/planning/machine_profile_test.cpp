// The file form of a machine profile: what is written reads the same, and what is malformed is refused by name.
#include "cluster/planning/machine_profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/refusal.h"

namespace ringmark::cluster {
namespace {

MachineProfile example() {
  MachineProfile profile;
  profile.name = "two cores";
  profile.backend = "cpu";
  profile.measured = "2026-12-01";
  profile.cores_per_node = 2;
  profile.memory_bytes = std::int64_t{6} << 30;
  profile.agreement = 0.5;
  profile.compute.score = {1e-5, 2.0 / 3.0, 1e-300};
  profile.compute.rest = {0.25, 0, 0};
  profile.link(LinkClass::kFabric) = {5e-5, 1e-6, 1.1e8, 1.0e8, 1.2e8, "measured: a wire"};
  return profile;
}

std::string refusal(const std::string& text) {
  const std::string line = test::refusal_of([&] { parse_profile(text, "m.json"); });
  EXPECT_EQ(line.find('\n'), std::string::npos);
  return line;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(MachineProfile, ReadsWhatItWrites) {
  const std::string text = profile_text(example());
  const MachineProfile again = parse_profile(text, "m.json");
  EXPECT_EQ(profile_text(again), text);
  EXPECT_EQ(again.compute.score.row, 2.0 / 3.0);
  EXPECT_EQ(again.compute.score.unit, 1e-300);
  EXPECT_EQ(again.link(LinkClass::kFabric).node, 1.2e8);
  EXPECT_FALSE(again.link(LinkClass::kHost).known());
}

TEST(MachineProfile, FileAppearsWhole) {
  const std::string path = testing::TempDir() + "ringmark_profile." + std::to_string(getpid()) + ".json";
  write_profile(example(), path);
  EXPECT_EQ(profile_text(find_profile(path)), profile_text(example()));
  std::filesystem::remove(path);
}

TEST(MachineProfile, H200IsShipped) {
  const MachineProfile h200 = find_profile("h200");
  EXPECT_EQ(h200.name, "h200");
  EXPECT_EQ(h200.backend, "cuda");
  EXPECT_TRUE(h200.link(LinkClass::kNvlink).known());
  EXPECT_EQ(h200.link(LinkClass::kNvlink).source.substr(0, 8), "measured");
  EXPECT_EQ(h200.link(LinkClass::kFabric).source.substr(0, 7), "assumed");
}

TEST(MachineProfile, UnknownNameSaysWhatThereIs) {
  EXPECT_EQ(test::refusal_of([] { find_profile("h20"); }),
            "profile = h20 is no file and no shipped profile; shipped: h200; did you mean h200?");
}

TEST(MachineProfile, RefusesByFieldAndLimit) {
  const std::string good = profile_text(example());
  EXPECT_EQ(refusal(good), "");
  EXPECT_EQ(refusal(replaced(good, "\"agreement\": 0.5", "\"agreement\": 1.5")),
            "profile m.json: agreement = 1.5 is not a number in [0, 1]");
  EXPECT_EQ(refusal(replaced(good, "\"memory_bytes\": 6442450944", "\"memory_bytes\": 0")),
            "profile m.json: memory_bytes = 0 is not a whole number in [1, 1125899906842624]");
  EXPECT_EQ(refusal(replaced(good, "\"memory_bytes\": 6442450944", "\"memory_bytes\": 18446744073709551615")),
            "profile m.json: memory_bytes = 18446744073709551615 is not a whole number in [1, 1125899906842624]");
  EXPECT_EQ(refusal(replaced(good, "\"fixed\": 1e-05", "\"fixed\": -1e-05")),
            "profile m.json: compute.score.fixed = -1e-05 is not a number in [0, 1000000]");
  EXPECT_EQ(refusal(replaced(good, "\"fixed\": 1e-05", "\"fixed\": null")),
            "profile m.json: compute.score.fixed = null is not a number in [0, 1000000]");
  EXPECT_EQ(refusal(replaced(good, "\"streamed\": 110000000.0", "\"streamed\": 0.0")),
            "profile m.json: links.fabric.streamed = 0.0 is not a number above 0 and at most 1e+18");
  EXPECT_EQ(refusal(replaced(good, "\"backend\": \"cpu\"", "\"backend\": \"tpu\"")),
            "profile m.json: backend = \"tpu\" is not cpu or cuda");
  EXPECT_EQ(refusal(replaced(good, "\"name\"", "\"nam\"")), "profile m.json: name is missing");
  EXPECT_EQ(refusal(replaced(good, "\"agreement\"", "\"agrement\": 1, \"agreement\"")),
            "profile m.json: unknown field agrement; did you mean agreement?");
  EXPECT_EQ(refusal(replaced(good, "\"row\": 0.6666666666666666", "\"row\": 1, \"row\": 2")),
            "profile m.json: row is given twice");
  EXPECT_EQ(refusal(replaced(good, "\"ringmark_profile\": 1", "\"ringmark_profile\": 2")),
            "profile m.json: ringmark_profile = 2 is not a whole number in [1, 1]");
  EXPECT_EQ(refusal("[]"), "profile m.json: the file is not an object");
}

TEST(MachineProfile, RefusesWhatIsNoJson) {
  const std::string good = profile_text(example());
  for (const std::string& bad : {std::string(), std::string("{"), replaced(good, "0.25", "NaN"),
                                 replaced(good, "0.25", "1e999"), good + "x", std::string("\xff\xfe")}) {
    EXPECT_EQ(refusal(bad).substr(0, 25), "profile m.json is no JSON") << bad;
  }
}

TEST(MachineProfile, RanksOfANodeShareCoresLinksAndMemory) {
  MachineProfile profile = example();
  EXPECT_EQ(profile.slowdown(1), 1.0);
  EXPECT_EQ(profile.slowdown(2), 1.0);
  EXPECT_EQ(profile.slowdown(4), 2.0);
  EXPECT_EQ(profile.memory_of_rank(4), profile.memory_bytes / 4);
  const LinkRate& wire = profile.link(LinkClass::kFabric);
  EXPECT_EQ(wire.shared(wire.streamed, 1), wire.streamed);
  EXPECT_EQ(wire.shared(wire.streamed, 4), 3e7);
  profile.backend = "cuda";
  profile.cores_per_node = 0;
  EXPECT_EQ(profile.slowdown(8), 1.0);
  EXPECT_EQ(profile.memory_of_rank(8), profile.memory_bytes);
}

}  // namespace
}  // namespace ringmark::cluster
