// What a run of --policy logo or dilated says about itself (docs/report.md): what such runs have in common, and rows
// and fields of the policy's own.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/job/stage_seconds.h"
#include "cluster/prefill/layer_run.h"
#include "cluster/prefill/position_fields.h"
#include "cluster/prefill/run_report.h"
#include "comm/block_transport.h"
#include "core/problem.h"

namespace ringmark::cluster {

struct BlockReport : RunReport {
  AttentionPolicy attention;  // whose keys the layout was balanced for: of LoGo the windows, else all keys
  std::string transport, transport_reason;
  std::int64_t bytes_fetched = 0;  // K and V received as blocks, all ranks

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
