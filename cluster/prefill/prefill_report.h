// What a prefill run says about itself: one table on rank 0, and the same fields as JSON. Field names are an interface
// (docs/report.md).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "cluster/job/stage_seconds.h"
#include "cluster/options/run_options.h"
#include "cluster/prefill/gpu_rank.h"
#include "cluster/prefill/position_fields.h"
#include "cluster/prefill/run_report.h"
#include "core/compressive_policy.h"
#include "core/problem.h"
#include "kvstore/block_codec.h"
#include "runtime/landmark_queries.h"
#include "runtime/recall.h"

namespace ringmark::cluster {

struct SnapshotReport {
  std::string folder;
  std::uint64_t generation = 0;
  kvstore::BlockFormat format = kvstore::BlockFormat::kAsInput;
  std::int64_t bytes = 0;     // blocks, landmarks and checksums, all shards
  std::string prefix_hashes;  // yes, or why not
  kvstore::BlockError error;  // of the kept blocks
};

// What --reuse found.
struct ReuseReport {
  std::string folder;
  std::uint64_t generation = 0;
  std::int64_t documents = 0;  // that have a kept beginning
  std::int64_t chunks = 0;
  std::int64_t tokens = 0;  // of these chunks
};

struct PrefillReport : RunReport {
  std::string policy_name;
  AttentionPolicy policy;
  std::string gates;                             // nsa: where they are from, or what they are
  std::optional<CompressivePolicy> compressive;  // only of this policy
  std::string transport, transport_reason, merge;
  std::string device;            // GPU of rank 0; empty on CPUs
  std::string fetch;             // GPU: blocks or stream, and why, on rank 0
  std::int64_t pairs = 0;        // GPU: (row, kv head) pairs that chose, all ranks
  std::int64_t exact_pairs = 0;  // of these, settled by the exact scorer
  std::uint64_t selection_digest = 0;
  std::int64_t bytes_fetched = 0;       // K and V received, all ranks
  std::int64_t bytes_merged = 0;        // landmarks or score lists received, all ranks
  std::array<double, 3> union_ratio{};  // at 16, 32, 64 queries
  std::int64_t tokens_resumed = 0;      // done by earlier runs, all ranks
  bool calibrated = false;
  runtime::LandmarkQuery landmark_query = runtime::LandmarkQuery::kSlot;
  std::optional<SnapshotReport> snapshot;
  std::optional<ReuseReport> reuse;
  std::optional<runtime::Recall> recall;
};

// Collective: what the layer's GPUs add to the report.
void describe_gpu(comm::Communicator& ranks, const GpuReport& gpu, PrefillReport& report);

std::string digest_text(std::uint64_t digest);
std::string report_table(const PrefillReport& report);
std::string report_json(const PrefillReport& report);
// On rank 0: the table, the digest and the file, as far as they are asked for.
void show_report(const PrefillReport& report, const RunOptions& options);

// What a ring that passes all K and V would receive, all ranks.
std::int64_t ring_bytes(const AttentionProblem& problem, int ranks);

}  // namespace ringmark::cluster
