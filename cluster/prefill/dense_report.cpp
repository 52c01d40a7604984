#include "cluster/prefill/dense_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cluster/options/size_text.h"
#include "cluster/prefill/layer_fields.h"
#include "runtime/dense/prefill.h"

namespace ringmark::cluster {
namespace {

std::int64_t moved(const runtime::dense::ReceivedBytes& received) {
  return received.keys + received.queries + received.partials;
}

double ratio(const DenseReport& r) {
  return r.bytes_ring > 0 ? static_cast<double>(moved(r.received)) / static_cast<double>(r.bytes_ring) : 0.0;
}

}  // namespace

std::string report_table(const DenseReport& r) {
  const AttentionProblem& p = r.problem;
  std::string table;
  const auto row = [&](std::string_view name, const std::string& value) { add_row(table, name, value); };
  row("tokens", tokens_text(r));
  row("heads", heads_text(p));
  row("policy", fmt::format("dense: every key up to the query, chunk {}{}", p.chunk_size,
                            p.landmark_slots ? " with landmark slot" : ""));
  if (const std::string logits = logits_text(p); !logits.empty()) row("logits", logits);
  if (r.positions) row("positions", positions_text(*r.positions, p));
  row("ranks", ranks_text(r));
  row("merge", r.merge_reason);
  row("seconds", seconds_text(r.seconds));
  row("bytes moved",
      fmt::format("{} of a ring's {} ({:.1f}%): keys and values {}, queries {}, partial results {}",
                  bytes_text(moved(r.received)), bytes_text(r.bytes_ring), 100.0 * ratio(r),
                  bytes_text(r.received.keys), bytes_text(r.received.queries), bytes_text(r.received.partials)));
  row("peak memory", fmt::format("{} a rank", bytes_text(r.peak_memory_bytes)));
  if (r.needles_planted > 0) row("needles", fmt::format("{} of {} recovered", r.needles_recovered, r.needles_planted));
  return table;
}

std::string report_json(const DenseReport& r) {
  nlohmann::ordered_json json;
  json["ringmark"] = RINGMARK_VERSION;
  json["policy"] = "dense";
  json["tokens"] = r.problem.tokens;
  json["ranks"] = r.ranks;
  for (const auto& [stage, value] : r.seconds) json["seconds"][stage] = value;
  json["bytes_fetched"] = r.received.keys;
  json["bytes_queries"] = r.received.queries;
  json["bytes_partials"] = r.received.partials;
  json["bytes_ring"] = r.bytes_ring;
  json["bytes_ratio"] = ratio(r);
  json["peak_memory_bytes"] = r.peak_memory_bytes;
  json["needles_planted"] = r.needles_planted;
  json["needles_recovered"] = r.needles_recovered;
  json["merge"] = r.merge;
  json["merge_reason"] = r.merge_reason;
  json["ulysses_ranks"] = r.ulysses_ranks;
  add_rank_fields(json, r);
  if (r.positions) json["positions"] = positions_json(*r.positions, r.problem);
  add_layer_fields(json, r.problem, runtime::dense::whole_window(r.problem));
  return json.dump(2) + "\n";
}

}  // namespace ringmark::cluster
