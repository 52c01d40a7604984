// --policy logo: a window for every row, dense attention for those that a gate selects, and what goes with them.
#pragma once

#include <optional>
#include <string>

#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "runtime/dense/strategy.h"
#include "runtime/logo/threshold_controller.h"

namespace ringmark::cluster {

struct LogoOptions {
  // Exactly one of the two.
  std::optional<double> threshold;
  std::optional<runtime::logo::ControllerSettings> controller;
  std::string controller_file;  // with the controller
  runtime::dense::Strategy strategy = runtime::dense::Strategy::kAllGather;
};

OptionGroup logo_options();

// Throws Error(kBadInput) where options do not fit together, and for one that the policy does not honour.
LogoOptions read_logo(const OptionValues& values);

}  // namespace ringmark::cluster
