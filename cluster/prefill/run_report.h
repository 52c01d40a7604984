// What the report of every run over one layer says, whatever was computed (docs/report.md): the facts, and how they
// stand in the table and in the JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/job/stage_seconds.h"
#include "cluster/prefill/position_fields.h"
#include "core/problem.h"
#include "runtime/stage_clock.h"

namespace ringmark::cluster {

class LayerRun;

struct RunReport {
  AttentionProblem problem;
  std::int64_t documents = 1;
  int ranks = 1;
  int threads = 1;
  std::string instruction_set, balance, backend;
  double balance_max_over_mean = 1.0;
  StageSeconds seconds;                // by stage, max over ranks
  std::int64_t bytes_ring = 0;         // what a ring that passes K and V, and their gradients, would have moved
  std::int64_t peak_memory_bytes = 0;  // max over ranks
  std::optional<PositionReport> positions;
  std::int64_t needles_planted = 0;
  std::int64_t needles_recovered = 0;
};

// Collective. `stages` as in slowest(), `clock` that of the engine; `out` are the rows of this rank.
RunReport report_of_run(const LayerRun& run, const std::vector<std::string>& stages, const runtime::StageClock& clock,
                        std::span<const float> out);

void add_row(std::string& table, std::string_view name, const std::string& value);
std::string tokens_text(const RunReport& report);
std::string heads_text(const AttentionProblem& problem);
std::string ranks_text(const RunReport& report);

// balance, balance_max_over_mean, backend, instruction_set, threads.
void add_rank_fields(nlohmann::ordered_json& json, const RunReport& report);

}  // namespace ringmark::cluster
