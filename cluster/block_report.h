// What a run of --policy logo or dilated says about itself (docs/report.md): what such runs have in common, and rows
// and fields of the policy's own.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/layer_run.h"
#include "cluster/position_fields.h"
#include "cluster/stage_seconds.h"
#include "comm/block_transport.h"
#include "core/problem.h"

namespace ringmark::cluster {

struct BlockReport {
  AttentionProblem problem;
  AttentionPolicy attention;  // whose keys the layout was balanced for: of LoGo the windows, else all keys
  std::int64_t documents = 1;
  int ranks = 1;
  int threads = 1;
  std::string instruction_set, balance, backend;
  double balance_max_over_mean = 1.0;
  std::string transport, transport_reason;
  StageSeconds seconds;                // by stage, max over ranks
  std::int64_t bytes_fetched = 0;      // K and V received as blocks, all ranks
  std::int64_t bytes_ring = 0;         // what a ring that passes everything would have moved, all ranks
  std::int64_t peak_memory_bytes = 0;  // max over ranks
  std::optional<PositionReport> positions;
  std::int64_t needles_planted = 0;
  std::int64_t needles_recovered = 0;

  std::string policy;                                        // its name
  std::vector<std::pair<std::string, std::string>> rows;     // of the table: name and text
  nlohmann::ordered_json fields = nlohmann::json::object();  // of the JSON
};

// Collective: all but the policy's own part. `stages` as in slowest(); `out` are the rows of this rank.
BlockReport make_block_report(LayerRun& run, const AttentionPolicy& attention, const comm::ChosenTransport& transport,
                              const std::vector<std::string>& stages, const runtime::StageClock& clock,
                              std::int64_t bytes_fetched, std::span<const float> out);

std::string report_table(const BlockReport& report);
std::string report_json(const BlockReport& report);

// On rank 0: the table, and the JSON where it is asked for.
void show_report(const BlockReport& report, const RunOptions& options);

}  // namespace ringmark::cluster
