#include "cluster/prefill/block_report.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <string_view>

#include "cluster/options/size_text.h"
#include "cluster/options/text_file.h"
#include "cluster/prefill/layer_fields.h"
#include "cluster/prefill/prefill_report.h"

namespace ringmark::cluster {

BlockReport make_block_report(LayerRun& run, const AttentionPolicy& attention, const comm::ChosenTransport& transport,
                              const std::vector<std::string>& stages, const runtime::StageClock& clock,
                              std::int64_t bytes_fetched, std::span<const float> out) {
  BlockReport report;
  static_cast<RunReport&>(report) = report_of_run(run, stages, clock, out);
  report.attention = attention;
  report.transport = transport.transport ? std::string(transport.transport->name()) : "none";
  report.transport_reason = transport.why;
  std::array<std::int64_t, 1> fetched = {bytes_fetched};
  run.ranks().all_reduce_sum("report", fetched);
  report.bytes_fetched = fetched[0];
  return report;
}

std::string report_table(const BlockReport& r) {
  const AttentionProblem& p = r.problem;
  std::string table;
  const auto row = [&](std::string_view name, const std::string& value) { add_row(table, name, value); };
  row("tokens", tokens_text(r));
  row("heads", heads_text(p));
  for (const auto& [name, text] : r.rows) row(name, text);
  if (const std::string logits = logits_text(p); !logits.empty()) row("logits", logits);
  if (r.positions) row("positions", positions_text(*r.positions, p));
  row("ranks", ranks_text(r));
  row("transport", r.transport_reason);
  row("seconds", seconds_text(r.seconds));
  row("blocks moved", fmt::format("{} of a ring's {}", bytes_text(r.bytes_fetched), bytes_text(r.bytes_ring)));
  row("peak memory", fmt::format("{} a rank", bytes_text(r.peak_memory_bytes)));
  if (r.needles_planted > 0) row("needles", fmt::format("{} of {} recovered", r.needles_recovered, r.needles_planted));
  return table;
}

std::string report_json(const BlockReport& r) {
  nlohmann::ordered_json json;
  json["ringmark"] = RINGMARK_VERSION;
  json["policy"] = r.policy;
  json["tokens"] = r.problem.tokens;
  json["ranks"] = r.ranks;
  for (const auto& [stage, value] : r.seconds) json["seconds"][stage] = value;
  json["bytes_fetched"] = r.bytes_fetched;
  json["bytes_ring"] = r.bytes_ring;
  json["peak_memory_bytes"] = r.peak_memory_bytes;
  json["needles_planted"] = r.needles_planted;
  json["needles_recovered"] = r.needles_recovered;
  json["transport"] = r.transport;
  json["transport_reason"] = r.transport_reason;
  add_rank_fields(json, r);
  if (r.positions) json["positions"] = positions_json(*r.positions, r.problem);
  add_layer_fields(json, r.problem, r.attention);
  json.update(r.fields);
  return json.dump(2) + "\n";
}

void show_report(const BlockReport& report, const RunOptions& options) {
  fmt::print("{}", report_table(report));
  std::fflush(stdout);
  if (!options.json.empty()) write_text_file(options.json, report_json(report));
}

}  // namespace ringmark::cluster
