#include "cluster/telemetry/hang_watch.h"

#include <gtest/gtest.h>

#include <vector>

namespace ringmark::cluster {
namespace {

comm::WaitNote wait_of(std::uint64_t id, double seconds) {
  comm::WaitNote wait;
  wait.id = id;
  wait.peers = {3};
  wait.seconds = seconds;
  return wait;
}

TEST(HangWatch, tells_at_the_threshold_at_doubled_times_and_at_the_end) {
  std::vector<HangWatch::Report> told;
  HangWatch watch(10, [&](const HangWatch::Report& report) { told.push_back(report); });
  const auto look = [&](std::optional<comm::WaitNote> wait) {
    watch.look(wait);
    return told.size();
  };
  EXPECT_EQ(look(std::nullopt), 0u);
  EXPECT_EQ(look(wait_of(1, 9)), 0u);
  EXPECT_EQ(look(wait_of(1, 11)), 1u);
  EXPECT_EQ(look(wait_of(1, 21)), 1u);
  EXPECT_EQ(look(wait_of(1, 22)), 2u);
  EXPECT_EQ(look(wait_of(1, 43)), 2u);
  EXPECT_EQ(look(wait_of(1, 44)), 3u);
  EXPECT_FALSE(told.back().is_over);
  EXPECT_EQ(look(std::nullopt), 4u);
  EXPECT_TRUE(told.back().is_over);
  EXPECT_EQ(told.back().wait.id, 1u);
  EXPECT_EQ(look(std::nullopt), 4u);
}

TEST(HangWatch, another_wait_begins_anew) {
  std::vector<bool> over;
  HangWatch watch(10, [&](const HangWatch::Report& report) { over.push_back(report.is_over); });
  watch.look(wait_of(1, 15));
  watch.look(wait_of(2, 3));  // the first is over, the second is short
  watch.look(wait_of(2, 12));
  EXPECT_EQ(over, (std::vector<bool>{false, true, false}));
}

TEST(HangWatch, short_waits_are_nobodys_business) {
  HangWatch watch(10, [](const HangWatch::Report&) { FAIL(); });
  for (std::uint64_t id = 1; id < 100; ++id) watch.look(wait_of(id, 9.9));
}

}  // namespace
}  // namespace ringmark::cluster
