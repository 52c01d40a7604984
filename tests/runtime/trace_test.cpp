#include "runtime/trace.h"

#include <gtest/gtest.h>

#include "runtime/stage_clock.h"

namespace ringmark::runtime {
namespace {

TEST(Trace, takes_the_spans_of_a_clock) {
  Trace trace;
  StageClock clock;
  clock.record_in(&trace);
  { const auto span = clock.time("window"); }
  { const auto span = clock.time("window"); }
  ASSERT_EQ(trace.spans().size(), 2u);
  EXPECT_EQ(trace.spans()[1].name, "window");
  EXPECT_EQ(trace.spans()[1].lane, "host");
  EXPECT_LE(trace.spans()[0].start_us + trace.spans()[0].length_us, trace.spans()[1].start_us + 1e-3);
  EXPECT_NEAR(clock.seconds("window"), (trace.spans()[0].length_us + trace.spans()[1].length_us) * 1e-6, 1e-9);
}

TEST(Trace, knows_what_no_other_lane_hid) {
  Trace trace;
  trace.add("attend", "gpu compute", 20.0, 10.0);
  trace.add("window", "gpu compute", 5.0, 10.0);
  trace.add("window", "gpu compute", 6.0, 3.0);  // inside the other
  trace.add("fetch", "gpu fetch", 0.0, 7.0);     // 5 before the window
  trace.add("fetch", "gpu fetch", 8.0, 4.0);     // hidden
  trace.add("fetch", "gpu fetch", 12.0, 23.0);   // 5 between the two and 5 after both
  trace.add("fetch", "host", 40.0, 9.0);         // another lane
  EXPECT_DOUBLE_EQ(uncovered_us(trace, "gpu fetch", "gpu compute"), 15.0);
  EXPECT_DOUBLE_EQ(uncovered_us(trace, "gpu fetch", "none"), 34.0);
  EXPECT_DOUBLE_EQ(uncovered_us(trace, "none", "gpu compute"), 0.0);
  EXPECT_DOUBLE_EQ(uncovered_us(Trace(), "gpu fetch", "gpu compute"), 0.0);
}

}  // namespace
}  // namespace ringmark::runtime
