#include "comm/deadline.h"

#include <gtest/gtest.h>

#include <thread>

namespace ringmark::comm {
namespace {

using std::chrono::milliseconds;

TEST(Deadline, passes_while_somebody_looks) {
  Deadline deadline = Deadline::in(milliseconds(30));
  EXPECT_FALSE(deadline.passed());
  while (!deadline.passed()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(deadline.passed());
}

TEST(Deadline, has_passed_when_nothing_was_granted) {
  Deadline deadline = Deadline::in(milliseconds(0));
  EXPECT_TRUE(deadline.passed());
}

// Longer than the deadline, and counts as one look: half of it.
TEST(Deadline, does_not_count_what_nobody_could_look_at) {
  Deadline deadline = Deadline::in(2 * Deadline::kLongestLook);
  std::this_thread::sleep_for(4 * Deadline::kLongestLook);
  EXPECT_FALSE(deadline.passed());
  std::this_thread::sleep_for(Deadline::kLongestLook);
  EXPECT_TRUE(deadline.passed());
}

}  // namespace
}  // namespace ringmark::comm
