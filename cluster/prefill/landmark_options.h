// `--landmark-query NAME`: where the landmark query of a chunk comes from. `--calibrate`: retrieval queries are made of
// hidden states.
#pragma once

#include "cluster/options/option_group.h"
#include "cluster/options/option_layers.h"
#include "runtime/landmark_queries.h"

namespace ringmark::cluster {

OptionGroup landmark_options();
// Throws Error(kBadInput) where the queries cannot come from elsewhere than the slots: a generated layer, a GPU, and
// what is kept in a snapshot, which does not say how its landmarks were built.
runtime::LandmarkQuery read_landmark_query(const OptionValues& values);
// Are the retrieval queries made of hidden states? Throws Error(kBadInput) for a generated layer, and for --reuse.
bool read_calibrate(const OptionValues& values);

}  // namespace ringmark::cluster
