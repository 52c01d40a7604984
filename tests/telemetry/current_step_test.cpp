#include "comm/current_step.h"

#include <gtest/gtest.h>

#include <thread>

#include "comm/current_wait.h"
#include "comm/peer_failure.h"
#include "runtime/stage_clock.h"

namespace ringmark::comm {
namespace {

TEST(CurrentStep, is_what_was_entered_last_and_ends_with_it) {
  EXPECT_EQ(words_of(current_step()), "");
  {
    const EnterLayer layer(2);
    EXPECT_EQ(words_of(current_step()), "layer 2");
    const EnterStep wave("attend wave", 7);
    runtime::StageClock clock;
    const auto span = clock.time("fetch");
    EXPECT_EQ(words_of(current_step()), "layer 2, stage fetch, attend wave 7");
    {
      const EnterStage stage("attend");
      EXPECT_EQ(words_of(current_step()), "layer 2, stage attend, attend wave 7");
      EXPECT_EQ(words_of(latest_step()), "layer 2, stage attend, attend wave 7");
    }
    EXPECT_EQ(current_step().stage, "fetch");
  }
  EXPECT_EQ(words_of(current_step()), "");
}

TEST(CurrentStep, belongs_to_a_thread) {
  const EnterLayer layer(1);
  std::thread([] { EXPECT_EQ(words_of(current_step()), ""); }).join();
}

TEST(CurrentStep, stands_in_the_line_of_a_deadline) {
  const EnterLayer layer(0);
  const EnterStage stage("select");
  const EnterStep round("select round", 3);
  const int peers[] = {0, 3};
  EXPECT_EQ(waited_text(2, "score lists", std::chrono::seconds(5), peers),
            "rank 2: stage 'score lists': waited 5.0 s for ranks 0, 3 (layer 0, stage select, select round 3)");
}

TEST(CurrentWait, knows_its_step_its_bytes_and_who_is_left) {
  EXPECT_FALSE(CurrentWait::latest());
  const EnterStage stage("fetch");
  {
    CurrentWait wait("block reads", {0, 1, 3}, 4096);
    auto note = CurrentWait::latest();
    ASSERT_TRUE(note);
    EXPECT_EQ(note->stage, "block reads");
    EXPECT_EQ(note->step.stage, "fetch");
    EXPECT_EQ(note->bytes, 4096);
    wait.renew({3}, 1024);
    note = CurrentWait::latest();
    EXPECT_EQ(note->peers, (std::vector<int>{3}));
    EXPECT_EQ(note->bytes, 1024);
    EXPECT_EQ(CurrentWait::words(), "stage 'block reads': waiting 0.0 s for rank 3 (stage fetch)");
  }
  EXPECT_FALSE(CurrentWait::latest());
  ASSERT_TRUE(CurrentWait::ended_last());
  EXPECT_EQ(CurrentWait::ended_last()->peers, (std::vector<int>{3}));
}

}  // namespace
}  // namespace ringmark::comm
