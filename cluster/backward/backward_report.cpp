#include "cluster/backward/backward_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cluster/options/size_text.h"
#include "cluster/prefill/layer_fields.h"
#include "cluster/prefill/prefill_report.h"

namespace ringmark::cluster {
namespace {

double ratio(const BackwardReport& r) {
  const auto moved = static_cast<double>(r.bytes_fetched + r.bytes_gradients);
  return r.bytes_ring > 0 ? moved / static_cast<double>(r.bytes_ring) : 0.0;
}

std::string policy_text(const BackwardReport& r) {
  const std::string chunk =
      fmt::format("chunk {}{}", r.problem.chunk_size, r.problem.landmark_slots ? " with landmark slot" : "");
  if (r.policy_name == "dense") return fmt::format("dense: every key up to the query, {}", chunk);
  return fmt::format("{}: {}, window {}, top {}, sinks {}", r.policy_name, chunk, r.policy.window, r.policy.topk,
                     r.policy.sinks);
}

}  // namespace

std::string report_table(const BackwardReport& r) {
  const AttentionProblem& p = r.problem;
  std::string table;
  const auto row = [&](std::string_view name, const std::string& value) { add_row(table, name, value); };
  row("tokens", tokens_text(r));
  row("heads", heads_text(p));
  row("policy", policy_text(r));
  row("ranks", ranks_text(r));
  row("transport", r.transport_reason);
  if (r.policy.selects()) row("selection digest", digest_text(r.selection_digest));
  row("seconds", seconds_text(r.seconds));
  row("bytes moved", fmt::format("{} of a ring's {} ({:.1f}%): keys and values {}, gradients {}",
                                 bytes_text(r.bytes_fetched + r.bytes_gradients), bytes_text(r.bytes_ring),
                                 100.0 * ratio(r), bytes_text(r.bytes_fetched), bytes_text(r.bytes_gradients)));
  row("bytes of forward", bytes_text(r.bytes_forward));
  row("stretches", fmt::format("{}", r.stretches));
  row("peak memory", fmt::format("{} a rank", bytes_text(r.peak_memory_bytes)));
  return table;
}

std::string report_json(const BackwardReport& r) {
  nlohmann::ordered_json json;
  json["ringmark"] = RINGMARK_VERSION;
  json["policy"] = r.policy_name;
  json["tokens"] = r.problem.tokens;
  json["ranks"] = r.ranks;
  if (r.policy.selects()) json["selection_digest"] = digest_text(r.selection_digest);
  for (const auto& [stage, value] : r.seconds) json["seconds"][stage] = value;
  json["bytes_forward"] = r.bytes_forward;
  json["bytes_fetched"] = r.bytes_fetched;
  json["bytes_gradients"] = r.bytes_gradients;
  json["bytes_ring"] = r.bytes_ring;
  json["bytes_ratio"] = ratio(r);
  json["stretches"] = r.stretches;
  json["peak_memory_bytes"] = r.peak_memory_bytes;
  json["transport_reason"] = r.transport_reason;
  add_rank_fields(json, r);
  add_layer_fields(json, r.problem, r.policy);
  return json.dump(2) + "\n";
}

std::int64_t backward_ring_bytes(const AttentionProblem& problem, int ranks) {
  const std::int64_t elements = problem.tokens * problem.kv_heads * problem.head_dim * 2;
  const std::int64_t gradients = ranks > 1 ? elements * static_cast<std::int64_t>(sizeof(float)) * ranks : 0;
  return ring_bytes(problem, ranks) + gradients;
}

}  // namespace ringmark::cluster
