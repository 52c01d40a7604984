// --policy dilated: LongNet's dilated segments, and what goes with them.
#pragma once

#include <vector>

#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "kernels/dilation.h"

namespace ringmark::cluster {

struct DilatedOptions {
  std::vector<kernels::Dilation> dilations;
};

OptionGroup dilated_options();

// Throws Error(kBadInput) where --dilation is missing or no list of pairs, and for an option that the policy does not
// honour.
DilatedOptions read_dilated(const OptionValues& values);

}  // namespace ringmark::cluster
