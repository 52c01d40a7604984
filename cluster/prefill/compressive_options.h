// --policy compressive: what goes with a compressive memory besides what policies share.
#pragma once

#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "core/compressive_policy.h"

namespace ringmark::cluster {

OptionGroup compressive_options();

// The memory is not looked at: it may come from the input. Throws Error(kBadInput) for an option that the policy does
// not honour, and without a segment.
CompressivePolicy read_compressive(const OptionValues& values);

}  // namespace ringmark::cluster
