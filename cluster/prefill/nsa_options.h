// --policy nsa: what goes with native sparse attention besides what policies share.
#pragma once

#include <array>
#include <optional>

#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"

namespace ringmark::cluster {

struct NsaOptions {
  // Of every token and head: compressed, selected, window. Unset: the input has a tensor of them.
  std::optional<std::array<float, 3>> gates;
};

OptionGroup nsa_options();

// Throws Error(kBadInput) for an option that the policy does not honour.
NsaOptions read_nsa(const OptionValues& values);

}  // namespace ringmark::cluster
