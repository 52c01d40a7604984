// The metrics of a rank in the text format of Prometheus, for the textfile collector of node_exporter
// (docs/observability.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/telemetry/run_state.h"

namespace ringmark::cluster {

struct RunMetrics {
  int rank = 0;
  int ranks = 1;
  std::string version, command, policy, host;
  double start_time = 0;   // seconds since 1970
  double update_time = 0;  // of this text
  std::vector<StageTotals> stages;
  std::vector<StageProgress> progress;
  std::int64_t received_bytes = 0;
  double wait_seconds = 0;          // all noted waits
  double current_wait_seconds = 0;  // 0: not waiting
  std::int64_t resident_bytes = 0, peak_bytes = 0;
  std::optional<int> exit_code;  // set: the run is over, at update_time
};

std::string metrics_text(const RunMetrics& metrics);

// "dir/run.rank3.prom" for "dir/run.prom": files of ranks do not collide, in whatever folder they are gathered.
std::string metrics_path(const std::string& file, int rank);

}  // namespace ringmark::cluster
