#include "runtime/logo/threshold_controller.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace ringmark::runtime::logo {
namespace {

TEST(ThresholdController, steps_by_the_sign_of_the_difference) {
  ThresholdController controller({.target_ratio = 0.25, .threshold_step = 0.125, .mask_steps = 2});
  EXPECT_EQ(controller.threshold(), 0.25);
  controller.observe(3, 8);  // more than a quarter
  EXPECT_EQ(controller.threshold(), 0.375);
  controller.observe(8, 8);  // how much more does not matter
  EXPECT_EQ(controller.threshold(), 0.5);
  controller.observe(2, 8);  // as wanted
  EXPECT_EQ(controller.threshold(), 0.5);
  controller.observe(0, 8);
  EXPECT_EQ(controller.threshold(), 0.375);
  EXPECT_EQ(controller.steps(), 4);
}

TEST(ThresholdController, goes_on_from_what_was_kept) {
  ThresholdController whole({});
  ThresholdController first({});
  for (int step = 0; step < 100; ++step) {
    whole.observe(step % 3, 3);
    if (step < 60) first.observe(step % 3, 3);
  }
  ThresholdController rest(first.settings(), first.threshold(), first.steps());
  for (int step = 60; step < 100; ++step) rest.observe(step % 3, 3);
  EXPECT_EQ(rest.threshold(), whole.threshold());
  EXPECT_EQ(rest.steps(), whole.steps());
}

// Gates that are even over (0, 1): from -2 the threshold reaches 0 after 4000 steps, in which every row attends, and
// the half of them after 5000, where it stays.
TEST(ThresholdController, is_dense_for_the_first_four_fifths_of_the_mask_phase) {
  std::mt19937_64 random(5);
  std::vector<double> gates(2000);
  for (double& gate : gates) gate = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
  ThresholdController controller({.target_ratio = 0.5, .threshold_step = 0.0005, .mask_steps = 5000});
  const auto count = [&] {
    std::int64_t selected = 0;
    for (const double gate : gates) selected += gate > controller.threshold() ? 1 : 0;
    return selected;
  };
  std::int64_t first_pruned = -1;
  for (std::int64_t step = 0; step < 6000; ++step) {
    const std::int64_t selected = count();
    if (selected < 2000 && first_pruned < 0) first_pruned = step;
    if (step >= 5200) {
      EXPECT_NEAR(static_cast<double>(selected) / 2000, 0.5, 0.002) << "step " << step;
    }
    controller.observe(selected, 2000);
  }
  EXPECT_GE(first_pruned, 4000);
  EXPECT_LE(first_pruned, 4010);
  EXPECT_NEAR(controller.threshold(), 0.5, 0.03);
}

}  // namespace
}  // namespace ringmark::runtime::logo
