// Progress against a clock and a screen of the test's own.
#include "cluster/job/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

namespace ringmark::cluster {
namespace {

using Form = Progress::Screen::Form;

class ProgressTest : public ::testing::Test {
 protected:
  Progress make(Progress::Screen screen) {
    return Progress(
        screen, [this](std::string_view text) { written_.emplace_back(text); }, [this] { return now_; });
  }

  double now_ = 1000;
  std::vector<std::string> written_;
};

TEST_F(ProgressTest, silent_writes_nothing) {
  Progress progress = make({.form = Form::kSilent});
  progress.begin("select", 10);
  for (int i = 0; i <= 10; ++i, now_ += 60) progress.advance(i);
  progress.end();
  EXPECT_TRUE(written_.empty());
}

TEST_F(ProgressTest, lines_come_every_ten_seconds) {
  Progress progress = make({.form = Form::kLines});
  progress.begin("select", 200);
  for (int i = 0; i < 100; ++i, now_ += 0.25) progress.advance(i);
  progress.end();
  EXPECT_EQ(written_, (std::vector<std::string>{"select: 20% (40 of 200), 10 s\n", "select: 40% (80 of 200), 20 s\n",
                                                "select: done in 25 s\n"}));
}

TEST_F(ProgressTest, many_short_stages_keep_the_rhythm_of_lines) {
  Progress progress = make({.form = Form::kLines});
  for (int stage = 0; stage < 120; ++stage) {
    progress.begin("wave", 2);
    progress.advance(1);
    now_ += 0.25;
    progress.advance(2);
    progress.end();
  }
  const auto lines = std::count_if(written_.begin(), written_.end(),
                                   [](const std::string& text) { return text.find('%') != std::string::npos; });
  EXPECT_EQ(lines, 3);
}

TEST_F(ProgressTest, bar_fills_the_screen_and_is_cleared_at_the_end) {
  Progress progress = make({.form = Form::kBar, .width = 60});
  progress.begin("select", 200);
  progress.advance(10);
  EXPECT_TRUE(written_.empty());  // a short stage does not flicker
  now_ += 1;
  progress.advance(100);
  progress.advance(101);  // too soon for another one
  ASSERT_EQ(written_.size(), 1u);
  EXPECT_EQ(written_[0], "\r\x1b[Kselect     [#############..............]  50%  100/200  1 s");
  EXPECT_EQ(written_[0].size(), 4u + 59u);
  progress.end();
  EXPECT_EQ(written_.back(), "\r\x1b[K");
  progress.end();
  EXPECT_EQ(written_.size(), 2u);
}

TEST_F(ProgressTest, colour_is_only_there_when_allowed) {
  Progress progress = make({.form = Form::kBar, .colour = true, .width = 100});
  progress.begin("select", 2);
  now_ += 1;
  progress.advance(1);
  EXPECT_NE(written_.back().find("\x1b[32m####################\x1b[0m"), std::string::npos);
}

TEST_F(ProgressTest, never_wider_than_the_screen) {
  for (int width = 1; width < 120; ++width) {
    Progress progress = make({.form = Form::kBar, .width = width});
    progress.begin("a stage with a long name", 1'000'000'000);
    now_ += 1;
    progress.advance(500'000'000);
    EXPECT_LE(written_.back().size() - 4, static_cast<std::size_t>(std::max(width - 1, 1))) << width;
  }
}

TEST_F(ProgressTest, an_error_leaves_no_bar_behind) {
  {
    Progress progress = make({.form = Form::kBar});
    progress.begin("select", 2);
    now_ += 1;
    progress.advance(1);
  }
  EXPECT_EQ(written_.back(), "\r\x1b[K");
}

TEST_F(ProgressTest, odd_totals_are_harmless) {
  Progress progress = make({.form = Form::kBar});
  progress.begin("empty shard", 0);
  now_ += 1;
  progress.advance(0);
  EXPECT_NE(written_.back().find("100%"), std::string::npos);
  progress.begin("next", 10);  // ends the one before
  EXPECT_EQ(written_.back(), "\r\x1b[K");
  now_ += 1;
  progress.advance(25);
  EXPECT_NE(written_.back().find("100%"), std::string::npos);
  progress.end();
  progress.advance(3);  // between stages
  EXPECT_EQ(written_.back(), "\r\x1b[K");
}

TEST(StderrScreen, other_ranks_and_quiet_are_silent) {
  EXPECT_EQ(stderr_screen(1, false).form, Form::kSilent);
  EXPECT_EQ(stderr_screen(0, true).form, Form::kSilent);
  EXPECT_NE(stderr_screen(0, false).form, Form::kSilent);
}

TEST(StderrScreen, honours_no_color) {
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(stderr_screen(0, false).colour);
  ::unsetenv("NO_COLOR");
}

}  // namespace
}  // namespace ringmark::cluster
