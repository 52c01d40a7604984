// What the policies that attend to pooled keys do not honour.
#pragma once

#include <string_view>

#include "cluster/option_values.h"

namespace ringmark::cluster {

// Throws Error(kBadInput) naming an option for snapshots, for GPUs or for the merge of a choice by scores.
void refuse_options_of_other_engines(const OptionValues& values, std::string_view policy);

}  // namespace ringmark::cluster
