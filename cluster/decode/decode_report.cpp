#include "cluster/decode/decode_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cluster/options/size_text.h"
#include "cluster/prefill/layer_fields.h"
#include "cluster/prefill/prefill_report.h"

namespace ringmark::cluster {
namespace {

double tokens_per_second(const DecodeReport& r) {
  return r.decode_seconds > 0.0 ? static_cast<double>(r.rows_decoded) / r.decode_seconds : 0.0;
}

// Of the blocks that went through the cache.
double hit_rate(const runtime::DecodeTraffic& traffic) {
  const std::int64_t wanted = traffic.cache_hits + traffic.blocks_pulled;
  return wanted > 0 ? static_cast<double>(traffic.cache_hits) / static_cast<double>(wanted) : 0.0;
}

std::string snapshot_text(const DecodeReport& r) {
  std::string text = fmt::format("{} generation {}, kept as {}", r.snapshot, r.generation_opened, name_of(r.format));
  if (r.generation_saved) text += fmt::format("; saved generation {}", *r.generation_saved);
  return text;
}

// Only where a push is an alternative, the costs of both were measured.
std::string exchange_text(const DecodeBackendReport& r) {
  if (!r.device.empty()) return r.exchange;
  return fmt::format("{}; a pull costs {:.1f} us a block, a push {:.1f} us a partial", r.exchange, 1e6 * r.costs.pull,
                     1e6 * r.costs.push);
}

std::string blocks_text(const DecodeReport& r) {
  const runtime::DecodeTraffic& t = r.traffic;
  if (!r.of_backend.device.empty()) return fmt::format("{} of other GPUs", t.blocks_pulled);
  return fmt::format("{} pulled and verified, {} pushed, {:.1f}% of the cache's were there", t.blocks_pulled,
                     t.blocks_pushed, 100.0 * hit_rate(t));
}

}  // namespace

std::string report_table(const DecodeReport& r) {
  const AttentionProblem& p = r.problem;
  const runtime::DecodeTraffic& t = r.traffic;
  std::string table;
  const auto row = [&](std::string_view name, const std::string& value) {
    table += fmt::format("{:<18}{}\n", name, value);
  };
  row("snapshot", snapshot_text(r));
  row("tokens kept", fmt::format("{} in {} sequence{}", p.tokens, r.sequences, r.sequences == 1 ? "" : "s"));
  row("tokens decoded",
      fmt::format("{} in {} step{}: {:.1f} a second; {} of {} rows were kept already", r.rows_decoded, r.steps,
                  r.steps == 1 ? "" : "s", tokens_per_second(r), r.rows_skipped, r.rows_of_file));
  row("heads", fmt::format("{} query, {} kv, d {}, {}", p.heads, p.kv_heads, p.head_dim, name_of(p.dtype)));
  row("policy",
      fmt::format("{}: chunk {}{}, window {}, top {}, sinks {}", name_of(r.policy.scorer), p.chunk_size,
                  p.landmark_slots ? " with landmark slot" : "", r.policy.window, r.policy.topk, r.policy.sinks));
  row("ranks", fmt::format("{} x {} thread{}, {} {}", r.ranks, r.threads, r.threads == 1 ? "" : "s", r.backend,
                           r.of_backend.instruction_set));
  if (!r.of_backend.device.empty()) row("device", r.of_backend.device);
  row("transport", r.of_backend.transport_reason);
  row("exchange", exchange_text(r.of_backend));
  row("selection digest", digest_text(r.selection_digest));
  row("seconds", seconds_text(r.seconds));
  row("bytes", fmt::format("{} pulled, {} pushed, {} gathered, {} of plans", bytes_text(t.bytes_pulled),
                           bytes_text(t.bytes_pushed), bytes_text(t.bytes_gathered), bytes_text(t.bytes_of_plans)));
  row("blocks", blocks_text(r));
  row("peak memory", fmt::format("{} a rank", bytes_text(r.peak_memory_bytes)));
  return table;
}

std::string report_json(const DecodeReport& r) {
  nlohmann::ordered_json json;
  json["ringmark"] = RINGMARK_VERSION;
  json["snapshot"] = r.snapshot;
  json["generation_opened"] = r.generation_opened;
  if (r.generation_saved) json["generation_saved"] = *r.generation_saved;
  json["block_format"] = name_of(r.format);
  json["tokens_kept"] = r.problem.tokens;
  json["sequences"] = r.sequences;
  json["rows_of_file"] = r.rows_of_file;
  json["rows_skipped"] = r.rows_skipped;
  json["tokens_decoded"] = r.rows_decoded;
  json["steps"] = r.steps;
  json["tokens_per_second"] = tokens_per_second(r);
  json["ranks"] = r.ranks;
  json["selection_digest"] = digest_text(r.selection_digest);
  for (const auto& [stage, value] : r.seconds) json["seconds"][stage] = value;
  json["seconds"]["decode"] = r.decode_seconds;
  json["bytes_pulled"] = r.traffic.bytes_pulled;
  json["bytes_pushed"] = r.traffic.bytes_pushed;
  json["bytes_gathered"] = r.traffic.bytes_gathered;
  json["bytes_of_plans"] = r.traffic.bytes_of_plans;
  json["blocks_pulled"] = r.traffic.blocks_pulled;
  json["blocks_verified"] = r.of_backend.device.empty() ? r.traffic.blocks_pulled : 0;
  json["blocks_pushed"] = r.traffic.blocks_pushed;
  json["cache_hits"] = r.traffic.cache_hits;
  json["cache_hit_rate"] = hit_rate(r.traffic);
  json["exchange"] = r.of_backend.exchange;
  json["pull_seconds"] = r.of_backend.costs.pull;
  json["push_seconds"] = r.of_backend.costs.push;
  json["peak_memory_bytes"] = r.peak_memory_bytes;
  json["transport"] = r.of_backend.transport;
  json["backend"] = r.backend;
  json["instruction_set"] = r.of_backend.instruction_set;
  if (!r.of_backend.device.empty()) json["device"] = r.of_backend.device;
  json["threads"] = r.threads;
  add_layer_fields(json, r.problem, r.policy);
  return json.dump(2) + "\n";
}

}  // namespace ringmark::cluster
