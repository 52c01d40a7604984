#include "comm/uncancellable_wait.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>

#include "comm/current_wait.h"
#include "tests/comm/waited_text.h"

namespace ringmark::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class UncancellableWaitTest : public testing::Test {
 protected:
  void SetUp() override {
    UncancellableWait::on_overdue([this](const std::string& text) { told_.set_value(text); });
  }
  void TearDown() override { UncancellableWait::on_overdue({}); }

  std::promise<std::string> told_;
};

TEST_F(UncancellableWaitTest, tells_when_the_limit_has_passed) {
  const UncancellableWait wait(2, "join the job", milliseconds(100));
  EXPECT_EQ(CurrentWait::words(), "stage 'join the job': waiting 0.0 s for other ranks, inside MPI");
  std::future<std::string> text = told_.get_future();
  ASSERT_EQ(text.wait_for(seconds(20)), std::future_status::ready);
  EXPECT_EQ(without_seconds(text.get()), "rank 2: stage 'join the job': waited ... s for other ranks, inside MPI");
}

TEST_F(UncancellableWaitTest, says_nothing_of_what_ends_in_time) {
  { const UncancellableWait wait(2, "join the job", seconds(20)); }
  EXPECT_EQ(told_.get_future().wait_for(milliseconds(0)), std::future_status::timeout);
  EXPECT_EQ(CurrentWait::words(), "");
}

}  // namespace
}  // namespace ringmark::comm
