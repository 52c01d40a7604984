#include "cluster/telemetry/clock_alignment.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <thread>

#include "comm/thread_ranks.h"

namespace ringmark::cluster {
namespace {

double true_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

TEST(ClockAlignment, the_fastest_ping_tells_the_offset) {
  // Sent at 100, back at 110: the other clock showed 1105 at 105, give or take 5. The slow ping says less.
  const std::array<Ping, 2> pings = {Ping{0, 1090, 80}, Ping{100, 1105, 110}};
  const ClockOffset offset = best_offset(pings);
  EXPECT_DOUBLE_EQ(offset.at_us, 105);
  EXPECT_DOUBLE_EQ(offset.offset_us, 1000);
  EXPECT_DOUBLE_EQ(offset.uncertainty_us, 5);
}

TEST(ClockAlignment, is_linear_between_two_measurements) {
  // 10 us behind at 0, 30 us behind at a second: 20 us in the middle, and it loses 20 us a second.
  const ClockAlignment clock{{0, 10, 1}, {1e6, 30, 2}};
  EXPECT_DOUBLE_EQ(clock.aligned(0), 10);
  EXPECT_DOUBLE_EQ(clock.aligned(5e5), 5e5 + 20);
  EXPECT_DOUBLE_EQ(clock.aligned(1e6), 1e6 + 30);
  EXPECT_DOUBLE_EQ(clock.drift_us_per_second(), 20);
  EXPECT_DOUBLE_EQ(clock.uncertainty_us(), 2);
}

TEST(ClockAlignment, one_measurement_has_no_drift) {
  const ClockAlignment clock{{7, 10, 1}, {7, 10, 1}};
  EXPECT_DOUBLE_EQ(clock.aligned(100), 110);
  EXPECT_DOUBLE_EQ(clock.drift_us_per_second(), 0);
}

// A rank's clock is off by 5 ms times its number and gains 200 us a second: what it shows is put right to within the
// error that was measured with it.
TEST(ClockAlignment, puts_lying_clocks_right_on_any_ranks) {
  for (const int ranks : {1, 2, 4}) {
    const double origin = true_us();
    comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
      const double offset = 5000.0 * communicator.rank(), drift = 200e-6 * communicator.rank();
      const auto shown = [&](double time) { return time + offset + drift * (time - origin); };
      const ClockMicroseconds lying = [&] { return shown(true_us()); };
      ClockAlignment clock;
      clock.begin = measure_offset(communicator, lying);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const double between = true_us();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      clock.end = measure_offset(communicator, lying);
      EXPECT_LE(std::abs(clock.aligned(shown(between)) - between), clock.uncertainty_us() + 0.1);
      EXPECT_LE(std::abs(clock.begin.offset_us + offset), clock.begin.uncertainty_us + drift * 1e6);
      if (communicator.rank() == 0) {
        EXPECT_EQ(clock.uncertainty_us(), 0);
      } else {
        EXPECT_GT(std::abs(shown(between) - between), 4000);
      }
    });
  }
}

}  // namespace
}  // namespace ringmark::cluster
