// `--recall FRACTION`: how much of the exact softmax mass the policy keeps, on a sample of the queries.
#pragma once

#include <optional>
#include <string_view>

#include "cluster/options/option_group.h"
#include "cluster/options/option_layers.h"
#include "kernels/backend.h"

namespace ringmark::cluster {

OptionGroup recall_options();
// The share of the queries that is looked at, in (0, 1]; nothing without the option. Throws Error(kBadInput) where the
// policy is none of the sparse engine, and for other backends than cpu: they leave no blocks to look at.
std::optional<double> read_recall(const OptionValues& values, std::string_view policy, kernels::Backend backend);

}  // namespace ringmark::cluster
