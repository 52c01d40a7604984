// The options that give a layer without positions its positions.
#pragma once

#include "cluster/options/option_group.h"
#include "cluster/options/option_layers.h"
#include "kernels/positions/encoding.h"

namespace ringmark::cluster {

OptionGroup position_options();

// Kind none without --rope. Throws Error(kBadInput) for a number outside its limits, for an option that the encoding
// does not know or needs and lacks, and for input that has its positions already.
kernels::PositionEncoding read_position_encoding(const OptionValues& values);

}  // namespace ringmark::cluster
