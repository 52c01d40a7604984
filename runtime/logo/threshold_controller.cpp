#include "runtime/logo/threshold_controller.h"

namespace ringmark::runtime::logo {

ThresholdController::ThresholdController(const ControllerSettings& settings)
    : ThresholdController(settings, 0.5 - settings.threshold_step * static_cast<double>(settings.mask_steps), 0) {}

ThresholdController::ThresholdController(const ControllerSettings& settings, double threshold, std::int64_t steps)
    : settings_(settings), threshold_(threshold), steps_(steps) {}

void ThresholdController::observe(std::int64_t selected, std::int64_t rows) {
  ++steps_;
  const double wanted = settings_.target_ratio * static_cast<double>(rows);
  const auto got = static_cast<double>(selected);
  if (got > wanted) threshold_ += settings_.threshold_step;
  if (got < wanted) threshold_ -= settings_.threshold_step;
}

}  // namespace ringmark::runtime::logo
