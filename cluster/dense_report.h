// What a run of --policy dense says about itself (docs/report.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cluster/position_fields.h"
#include "cluster/stage_seconds.h"
#include "core/problem.h"
#include "runtime/dense/team_work.h"

namespace ringmark::cluster {

struct DenseReport {
  AttentionProblem problem;
  std::int64_t documents = 1;
  int ranks = 1;
  int threads = 1;
  std::string instruction_set, balance, backend;
  double balance_max_over_mean = 1.0;
  std::string merge, merge_reason;
  int ulysses_ranks = 1;
  StageSeconds seconds;                    // by stage, max over ranks
  runtime::dense::ReceivedBytes received;  // all ranks
  std::int64_t bytes_ring = 0;             // what a ring that passes everything would have moved, all ranks
  std::int64_t peak_memory_bytes = 0;      // max over ranks
  std::optional<PositionReport> positions;
  std::int64_t needles_planted = 0;
  std::int64_t needles_recovered = 0;
};

std::string report_table(const DenseReport& report);
std::string report_json(const DenseReport& report);

}  // namespace ringmark::cluster
