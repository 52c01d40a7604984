// What a run of --policy dense says about itself (docs/report.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cluster/job/stage_seconds.h"
#include "cluster/prefill/position_fields.h"
#include "cluster/prefill/run_report.h"
#include "core/problem.h"
#include "runtime/dense/team_work.h"

namespace ringmark::cluster {

struct DenseReport : RunReport {
  std::string merge, merge_reason;
  int ulysses_ranks = 1;
  runtime::dense::ReceivedBytes received;  // all ranks
};

std::string report_table(const DenseReport& report);
std::string report_json(const DenseReport& report);

}  // namespace ringmark::cluster
