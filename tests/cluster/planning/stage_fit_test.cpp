// The line of a stage: known coefficients come back from exact and from noisy measurements, and never negative ones.
#include "cluster/planning/stage_fit.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ringmark::cluster {
namespace {

std::vector<StageSample> samples_of(const StageRate& rate, double noise) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> factor(1.0 - noise, 1.0 + noise);
  std::vector<StageSample> samples;
  for (const double rows : {4096.0, 8192.0, 16384.0, 32768.0}) {
    for (const double per_row : {1e3, 5e3, 4e4}) {
      const double units = rows * per_row;
      samples.push_back({rows, units, rate.seconds(rows, units) * factor(random)});
    }
  }
  return samples;
}

TEST(StageFit, RecoversALine) {
  const StageRate rate{2e-4, 3e-8, 5e-12};
  const StageFit fit = fit_stage(samples_of(rate, 0.0));
  EXPECT_NEAR(fit.rate.fixed / rate.fixed, 1.0, 1e-6);
  EXPECT_NEAR(fit.rate.row / rate.row, 1.0, 1e-6);
  EXPECT_NEAR(fit.rate.unit / rate.unit, 1.0, 1e-6);
  EXPECT_LT(fit.worst_error, 1e-9);
}

TEST(StageFit, RecoversALineFromNoise) {
  const StageRate rate{2e-4, 3e-8, 5e-12};
  const StageFit fit = fit_stage(samples_of(rate, 0.05));
  EXPECT_NEAR(fit.rate.row / rate.row, 1.0, 0.2);
  EXPECT_NEAR(fit.rate.unit / rate.unit, 1.0, 0.1);
  EXPECT_GT(fit.mean_error, 0.0);
  EXPECT_LT(fit.worst_error, 0.1);
}

// Two points by hand: 1 s at 1 unit, 2 s at 3 units is 0.5 + 0.5 x.
TEST(StageFit, TwoPointsByHand) {
  const std::vector<StageSample> samples = {{0, 1, 1}, {0, 3, 2}};
  const StageFit fit = fit_stage(samples);
  EXPECT_NEAR(fit.rate.fixed, 0.5, 1e-9);
  EXPECT_EQ(fit.rate.row, 0.0);
  EXPECT_NEAR(fit.rate.unit, 0.5, 1e-9);
}

// Falling times would need a negative slope: the best constant instead.
TEST(StageFit, NeverNegative) {
  const std::vector<StageSample> samples = {{1, 0, 4}, {2, 0, 3}, {3, 0, 2}};
  const StageFit fit = fit_stage(samples);
  EXPECT_GT(fit.rate.fixed, 2.0);
  EXPECT_LT(fit.rate.fixed, 4.0);
  EXPECT_EQ(fit.rate.row, 0.0);
  EXPECT_EQ(fit.rate.unit, 0.0);
}

TEST(StageFit, NothingMeasured) {
  EXPECT_EQ(fit_stage({}).rate.unit, 0.0);
  const std::vector<StageSample> none = {{100, 5, 0}, {200, 7, 0}};
  EXPECT_EQ(fit_stage(none).rate.seconds(1e6, 1e6), 0.0);
}

}  // namespace
}  // namespace ringmark::cluster
