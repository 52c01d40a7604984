#include "runtime/fetch_strategy.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace ringmark::runtime {
namespace {

constexpr std::int64_t kGb = 1'000'000'000;

// 90 of 100 bytes at 336 GB/s take longer than 100 at 374 from 89.84 on.
TEST(FetchStrategy, streams_when_nearly_everything_was_chosen) {
  EXPECT_EQ(choose_fetch(Fetch::kAuto, 10 * kGb, 100 * kGb, 100 * kGb).fetch, Fetch::kBlocks);
  EXPECT_EQ(choose_fetch(Fetch::kAuto, 89 * kGb, 100 * kGb, 100 * kGb).fetch, Fetch::kBlocks);
  EXPECT_EQ(choose_fetch(Fetch::kAuto, 90 * kGb, 100 * kGb, 100 * kGb).fetch, Fetch::kStream);
  EXPECT_EQ(choose_fetch(Fetch::kAuto, 100 * kGb, 100 * kGb, 100 * kGb).fetch, Fetch::kStream);
}

TEST(FetchStrategy, predicts_seconds_from_the_rates) {
  const FetchDecision decision = choose_fetch(Fetch::kAuto, 30, 50, 50, {.scattered = 10.0, .streamed = 20.0});
  EXPECT_DOUBLE_EQ(decision.blocks_seconds, 3.0);
  EXPECT_DOUBLE_EQ(decision.stream_seconds, 2.5);
  EXPECT_EQ(decision.fetch, Fetch::kStream);
  EXPECT_EQ(decision.why,
            "stream: 60.0% of the remote blocks were chosen, 3000.000 ms by blocks, 2500.000 ms streamed");
}

TEST(FetchStrategy, streams_only_into_room_for_everything) {
  const FetchDecision decision = choose_fetch(Fetch::kAuto, 100 * kGb, 100 * kGb, 99 * kGb);
  EXPECT_EQ(decision.fetch, Fetch::kBlocks);
  EXPECT_NE(decision.why.find("(no room to stream)"), std::string::npos) << decision.why;
  EXPECT_THROW(choose_fetch(Fetch::kStream, 1, 100, 99), Error);
}

TEST(FetchStrategy, does_as_asked) {
  EXPECT_EQ(choose_fetch(Fetch::kStream, 0, 100, 100).fetch, Fetch::kStream);
  EXPECT_EQ(choose_fetch(Fetch::kBlocks, 100, 100, 100).fetch, Fetch::kBlocks);
}

TEST(FetchStrategy, one_rank_has_nothing_to_fetch) {
  const FetchDecision decision = choose_fetch(Fetch::kAuto, 0, 0, 0);
  EXPECT_EQ(decision.fetch, Fetch::kBlocks);
  EXPECT_EQ(decision.why, "no remote blocks");
}

}  // namespace
}  // namespace ringmark::runtime
