// What a run of `ringmark backward` says about itself (docs/report.md).
#pragma once

#include <cstdint>
#include <string>

#include "cluster/job/stage_seconds.h"
#include "cluster/prefill/run_report.h"
#include "core/problem.h"

namespace ringmark::cluster {

struct BackwardReport : RunReport {
  AttentionPolicy policy;
  std::string policy_name;  // of --policy
  std::string transport_reason;
  std::uint64_t selection_digest = 0;
  std::int64_t bytes_forward = 0;    // received by the forward, all ranks
  std::int64_t bytes_fetched = 0;    // K and V blocks and landmark records received by the backward, all ranks
  std::int64_t bytes_gradients = 0;  // gradients of keys and values that went home, all ranks
  std::int64_t stretches = 0;        // parts of the sequence after each of which gradients went home
};

std::string report_table(const BackwardReport& report);
std::string report_json(const BackwardReport& report);

// What a ring receives on all ranks whose K and V travel ranks - 1 steps and whose fp32 gradients come home after
// ranks.
std::int64_t backward_ring_bytes(const AttentionProblem& problem, int ranks);

}  // namespace ringmark::cluster
