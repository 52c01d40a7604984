// The threshold of LoGo's gates (arXiv 2608.29539), moved until the share of rows that attend globally is the one that
// was asked for: after every step b <- b + gamma sign(share - target). It starts at 0.5 - gamma M, so that it reaches
// the middle of the gates' range after M steps in which every row attends. Gates lie in (0, 1): the first
// M - 0.5 / gamma steps, 80 % of M at the usual values, leave out no row.
#pragma once

#include <cstdint>

namespace ringmark::runtime::logo {

struct ControllerSettings {
  double target_ratio = 0.5;       // share of rows, 0..1
  double threshold_step = 0.0005;  // gamma, above 0
  std::int64_t mask_steps = 5000;  // M
};

class ThresholdController {
 public:
  explicit ThresholdController(const ControllerSettings& settings);
  // As an earlier one stood.
  ThresholdController(const ControllerSettings& settings, double threshold, std::int64_t steps);

  const ControllerSettings& settings() const { return settings_; }
  double threshold() const { return threshold_; }
  std::int64_t steps() const { return steps_; }

  // After a step under threshold(): `selected` of all `rows` attended globally.
  void observe(std::int64_t selected, std::int64_t rows);

 private:
  ControllerSettings settings_;
  double threshold_;
  std::int64_t steps_ = 0;
};

}  // namespace ringmark::runtime::logo
