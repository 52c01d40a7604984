// The GPU of this rank, behind an interface that a build without CUDA has too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cluster/prefill/prefill_options.h"
#include "comm/communicator.h"
#include "core/problem.h"
#include "partition/layout.h"
#include "runtime/layer_shard.h"
#include "runtime/memory_plan.h"
#include "runtime/prefill.h"
#include "runtime/progress_sink.h"

namespace ringmark::cluster {

// What a run on a GPU has to say beyond the report of any backend.
struct GpuReport {
  std::string device;            // name and UUID
  std::string device_name;       // "GPU 1"
  std::string kernels;           // family: hopper, mma or simt
  std::string transport;         // name
  std::string transport_reason;  // one line
  std::string fetch;             // one line: blocks or stream, and why
  std::int64_t pairs = 0;        // (row, kv head) pairs of this rank that chose
  std::int64_t exact_pairs = 0;  // of these, settled by the exact scorer
};

class GpuRank {
 public:
  virtual ~GpuRank() = default;

  // Bytes that this rank may take, its share where ranks share a GPU.
  virtual std::int64_t memory_limit() const = 0;
  virtual runtime::MemoryPlan plan(const AttentionProblem& problem, const AttentionPolicy& policy,
                                   const partition::SequenceGrid& grid, const runtime::ShardSize& shard,
                                   bool has_retrieval_queries, runtime::Merge merge) const = 0;
  // Collective.
  virtual runtime::PrefillResult prefill(const AttentionProblem& problem, const AttentionPolicy& policy,
                                         const partition::Layout& layout, runtime::LayerShard& shard,
                                         const runtime::PrefillOptions& options, runtime::ProgressSink& progress,
                                         runtime::Trace* trace) = 0;
  virtual const GpuReport& report() const = 0;
};

// Collective: chooses the GPU by the local rank; two ranks on one GPU, and a rank without one, are Error(kEnvironment).
std::unique_ptr<GpuRank> make_gpu_rank(comm::Communicator& ranks, const PrefillOptions& options);

}  // namespace ringmark::cluster
