// Exact causal attention of one layer over the GPUs of all ranks: while the keys that are here are attended to, those
// of the next rank come. Every rank reads them from their owner, which a GPU can do as fast as from a neighbour, so
// that nobody waits for anybody to pass them on; two buffers whatever the size of the ring. The ranks start with the
// next one each, so that every owner has one reader at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/communicator.h"
#include "comm/cuda/device_transport.h"
#include "core/problem.h"
#include "kernels/cuda/layer.h"
#include "partition/layout.h"
#include "runtime/cuda/device_shard.h"
#include "runtime/cuda/workspace.h"
#include "runtime/progress_sink.h"
#include "runtime/stage_clock.h"

namespace ringmark::runtime::cuda {

struct DenseRingOptions {
  std::optional<kernels::cuda::Path> path;  // unset: the fastest that the shape and the GPU allow
  Trace* trace = nullptr;
};

struct DenseRingResult {
  kernels::cuda::Path path = kernels::cuda::Path::kSimt;
  std::int64_t bytes_received = 0;  // keys and values, by this rank
  StageClock clock;                 // store, attend, merge
};

// Collective. `grid` is that of dense::whole_window(). Leaves out and lse of all rows in the workspace; K and V of
// `shard` are released. Throws Error(kPeer) when a peer misses a deadline.
DenseRingResult attend_by_ring(comm::Communicator& communicator, comm::cuda::DeviceTransport& transport,
                               const AttentionProblem& problem, const partition::SequenceGrid& grid,
                               const partition::Layout& layout, DeviceShard& shard, const DenseRingOptions& options,
                               Workspace& workspace, ProgressSink& progress);

}  // namespace ringmark::runtime::cuda
