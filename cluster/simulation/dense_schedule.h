// The steps of exact causal attention by ring or all-gather, by the runtime's own routes and pieces (runtime/dense).
#pragma once

#include "cluster/simulation/layer_schedule.h"

namespace ringmark::cluster {

// On GPUs a ring reads each shard from its owner (runtime/cuda/dense_ring.cpp), on cores shards pass from neighbour to
// neighbour (runtime/dense/ring.cpp); an all-gather on GPUs is that of cores: the GPU engine has none.
LayerSchedules schedule_dense(const LayerJob& job, Arm arm, const partition::SequenceGrid& grid,
                              const partition::Layout& layout, const Topology& topology, const MachineProfile& profile);

}  // namespace ringmark::cluster
