// Prefill of one layer on a GPU: the algorithm of runtime/prefill.h, its arrays on the device from input to output. The
// selection is the one that the CPU makes from the same window lse, on any number of ranks (kernels/cuda/score.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "comm/cuda/device_transport.h"
#include "core/problem.h"
#include "kernels/cuda/layer.h"
#include "partition/layout.h"
#include "runtime/cuda/device_shard.h"
#include "runtime/cuda/workspace.h"
#include "runtime/fetch_strategy.h"
#include "runtime/prefill.h"

namespace ringmark::runtime::cuda {

struct DevicePrefillOptions {
  Merge merge = Merge::kAuto;
  std::int64_t fetch_budget = std::int64_t{8} << 30;  // bytes of received blocks held at once
  std::int64_t table_budget = std::int64_t{8} << 30;  // gathered landmark table, for Merge::kAuto
  Fetch fetch = Fetch::kAuto;
  std::optional<kernels::cuda::Path> path;  // unset: the fastest that the shape and the GPU allow
  Trace* trace = nullptr;
};

// What a run leaves in its workspace (out, lse, selection of all rows, on the device), and what it was like.
struct DevicePrefillResult {
  kernels::cuda::Path path = kernels::cuda::Path::kSimt;
  Merge merge = Merge::kAuto;
  FetchDecision fetch;
  std::int64_t bytes_fetched = 0;
  std::int64_t bytes_merged = 0;
  std::int64_t pairs = 0;          // (row, kv head) pairs that chose
  std::int64_t exact_pairs = 0;    // of these, settled by the exact scorer
  std::int64_t union_items = 0;    // chunks loaded by the tiles of attend_chosen
  std::int64_t union_queries = 0;  // queries a tile
  std::int64_t chosen = 0;         // chunks chosen, over all pairs
  std::int64_t finer_rows = 0;     // rows whose tiles were cut finer, because neighbours agree too little
  StageClock clock;

  // Chunks that a tile loads over chunks that one of its queries chose, 0 where nothing was chosen.
  double union_ratio() const {
    return chosen > 0
               ? static_cast<double>(union_items) * static_cast<double>(union_queries) / static_cast<double>(chosen)
               : 0.0;
  }
};

// Collective, as runtime::prefill. `host` is the same shard in host memory, needed only by the `scores` merge; may be
// null for Merge::kLandmarks. K and V of `shard` are released.
DevicePrefillResult prefill(comm::Communicator& communicator, comm::cuda::DeviceTransport& transport,
                            const AttentionProblem& problem, const AttentionPolicy& policy,
                            const partition::Layout& layout, DeviceShard& shard, const LayerShard* host,
                            const DevicePrefillOptions& options, Workspace& workspace, ProgressSink& progress);

// The result in host memory, as the CPU engine returns it.
PrefillResult download(const AttentionProblem& problem, const AttentionPolicy& policy, std::int64_t rows,
                       const Workspace& workspace, const DevicePrefillResult& result);

// Uploads, runs, downloads.
PrefillResult prefill_on_gpu(comm::Communicator& communicator, comm::cuda::DeviceTransport& transport,
                             const AttentionProblem& problem, const AttentionPolicy& policy,
                             const partition::Layout& layout, LayerShard& shard, const DevicePrefillOptions& options,
                             ProgressSink& progress, DevicePrefillResult* details = nullptr);

}  // namespace ringmark::runtime::cuda
