#include "cluster/prefill/prefill_report.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cluster/options/size_text.h"
#include "cluster/options/text_file.h"
#include "cluster/prefill/layer_fields.h"
#include "cluster/prefill/recall_fields.h"

namespace ringmark::cluster {
namespace {

double ratio(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

std::string snapshot_text(const SnapshotReport& snapshot) {
  std::string text = fmt::format("{} generation {}: {}, {}, prefix hashes: {}", snapshot.folder, snapshot.generation,
                                 name_of(snapshot.format), bytes_text(snapshot.bytes), snapshot.prefix_hashes);
  if (snapshot.format != kvstore::BlockFormat::kAsInput) {
    text +=
        fmt::format("; largest error K {:.3g}, V {:.3g}", snapshot.error.keys.largest, snapshot.error.values.largest);
  }
  return text;
}

std::string reuse_text(const ReuseReport& reuse, std::int64_t tokens) {
  if (reuse.tokens == 0) {
    return fmt::format("nothing: {} generation {} keeps no beginning of the input", reuse.folder, reuse.generation);
  }
  return fmt::format("{} of {} tokens ({:.1f}%) in {} chunks of {} document{}, kept in {} generation {}; {} computed",
                     reuse.tokens, tokens, 100.0 * ratio(reuse.tokens, tokens), reuse.chunks, reuse.documents,
                     reuse.documents == 1 ? "" : "s", reuse.folder, reuse.generation, tokens - reuse.tokens);
}

std::string policy_text(const PrefillReport& r) {
  const AttentionPolicy& policy = r.policy;
  std::string text = fmt::format("{}: chunk {}{}", r.policy_name, r.problem.chunk_size,
                                 r.problem.landmark_slots ? " with landmark slot" : "");
  if (policy.edge == WindowEdge::kSegment) {
    text += fmt::format(", segment {}, memory {}", policy.segment, policy.window);
    if (!r.compressive) return text;
    return text + fmt::format(", {} compressed slots of {} tokens", r.compressive->slots, r.compressive->rate);
  }
  if (!r.gates.empty()) {
    return text + fmt::format(", window {}, top {}, gates {}", policy.window, policy.topk, r.gates);
  }
  text += fmt::format(", window {}, top {}, sinks {}", policy.window, policy.topk, policy.sinks);
  if (policy.landmark_positions == LandmarkPositions::kStingy) text += ", stingy positions";
  if (policy.selects()) text += fmt::format(", choice by {}, {}", name_of(policy.choice), name_of(policy.fusion));
  return text;
}

}  // namespace

std::string digest_text(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

std::string report_table(const PrefillReport& r) {
  const AttentionProblem& p = r.problem;
  std::string table;
  const auto row = [&](std::string_view name, const std::string& value) { add_row(table, name, value); };
  row("tokens", tokens_text(r));
  if (r.reuse) row("reused", reuse_text(*r.reuse, p.tokens));
  row("heads", heads_text(p));
  row("policy", policy_text(r));
  if (r.calibrated) row("retrieval queries", "of hidden states");
  if (r.landmark_query != runtime::LandmarkQuery::kSlot) {
    row("landmark queries", r.landmark_query == runtime::LandmarkQuery::kChunk ? "one a chunk" : "one for all chunks");
  }
  if (const std::string logits = logits_text(p); !logits.empty()) row("logits", logits);
  if (r.positions) row("positions", positions_text(*r.positions, p));
  row("ranks", ranks_text(r));
  if (!r.device.empty()) row("device", r.device);
  row("transport", r.transport_reason);
  if (!r.fetch.empty()) row("fetch", r.fetch);
  row("merge", r.merge);
  row("selection digest", digest_text(r.selection_digest));
  if (r.pairs > 0) {
    row("settled exactly",
        fmt::format("{} of {} choices ({:.2f}%)", r.exact_pairs, r.pairs, 100.0 * ratio(r.exact_pairs, r.pairs)));
  }
  row("seconds", seconds_text(r.seconds));
  row("bytes fetched", fmt::format("{} of a ring's {} ({:.1f}%)", bytes_text(r.bytes_fetched), bytes_text(r.bytes_ring),
                                   100.0 * ratio(r.bytes_fetched, r.bytes_ring)));
  row("bytes merged", bytes_text(r.bytes_merged));
  row("union ratio", fmt::format("{:.2f} at 16 queries, {:.2f} at 32, {:.2f} at 64", r.union_ratio[0], r.union_ratio[1],
                                 r.union_ratio[2]));
  if (r.recall) {
    for (const auto& [name, value] : recall_rows(*r.recall, p)) row(name, value);
  }
  if (r.tokens_resumed > 0) row("resumed", fmt::format("{} of {} tokens", r.tokens_resumed, p.tokens));
  row("peak memory", fmt::format("{} a rank", bytes_text(r.peak_memory_bytes)));
  if (r.snapshot) row("snapshot", snapshot_text(*r.snapshot));
  if (r.needles_planted > 0) row("needles", fmt::format("{} of {} recovered", r.needles_recovered, r.needles_planted));
  return table;
}

std::string report_json(const PrefillReport& r) {
  nlohmann::ordered_json json;
  json["ringmark"] = RINGMARK_VERSION;
  json["tokens"] = r.problem.tokens;
  json["ranks"] = r.ranks;
  json["policy"] = r.policy_name;
  json["choice"] = name_of(r.policy.choice);
  json["fusion"] = name_of(r.policy.fusion);
  if (r.policy.edge == WindowEdge::kSegment) json["segment"] = r.policy.segment;
  if (r.policy.scorer == Scorer::kLandmark) json["landmark_positions"] = name_of(r.policy.landmark_positions);
  if (!r.gates.empty()) json["gates"] = r.gates;
  if (r.compressive) {
    json["compressed_slots"] = r.compressive->slots;
    json["compression_rate"] = r.compressive->rate;
  }
  json["selection_digest"] = digest_text(r.selection_digest);
  for (const auto& [stage, value] : r.seconds) json["seconds"][stage] = value;
  json["bytes_fetched"] = r.bytes_fetched;
  json["bytes_ring"] = r.bytes_ring;
  json["bytes_ratio"] = ratio(r.bytes_fetched, r.bytes_ring);
  json["bytes_merged"] = r.bytes_merged;
  json["union_ratio"] = {{"16", r.union_ratio[0]}, {"32", r.union_ratio[1]}, {"64", r.union_ratio[2]}};
  json["peak_memory_bytes"] = r.peak_memory_bytes;
  json["tokens_resumed"] = r.tokens_resumed;
  json["needles_planted"] = r.needles_planted;
  json["needles_recovered"] = r.needles_recovered;
  json["transport"] = r.transport;
  json["merge"] = r.merge;
  add_rank_fields(json, r);
  if (!r.device.empty()) {
    json["device"] = r.device;
    json["fetch"] = r.fetch;
    json["choices"] = r.pairs;
    json["choices_settled_exactly"] = r.exact_pairs;
  }
  if (r.calibrated) json["calibrated"] = true;
  if (r.landmark_query != runtime::LandmarkQuery::kSlot) json["landmark_query"] = name_of(r.landmark_query);
  if (r.positions) json["positions"] = positions_json(*r.positions, r.problem);
  if (r.reuse) {
    json["reused_from"] = {{"folder", r.reuse->folder}, {"generation", r.reuse->generation}};
    json["reused_documents"] = r.reuse->documents;
    json["reused_chunks"] = r.reuse->chunks;
    json["reused_tokens"] = r.reuse->tokens;
    json["reused_share"] = ratio(r.reuse->tokens, r.problem.tokens);
  }
  if (r.snapshot) {
    json["snapshot"] = {{"folder", r.snapshot->folder},
                        {"generation", r.snapshot->generation},
                        {"block_format", name_of(r.snapshot->format)},
                        {"bytes", r.snapshot->bytes},
                        {"prefix_hashes", r.snapshot->prefix_hashes},
                        {"largest_key_error", r.snapshot->error.keys.largest},
                        {"largest_value_error", r.snapshot->error.values.largest}};
  }
  if (r.recall) json["recall"] = recall_json(*r.recall);
  add_layer_fields(json, r.problem, r.policy);
  return json.dump(2) + "\n";
}

void describe_gpu(comm::Communicator& ranks, const GpuReport& gpu, PrefillReport& report) {
  std::array<std::int64_t, 2> pairs = {gpu.pairs, gpu.exact_pairs};
  ranks.all_reduce_sum("report", pairs);
  report.instruction_set = gpu.kernels;
  report.transport = gpu.transport;
  report.transport_reason = gpu.transport_reason;
  report.device = gpu.device;
  report.fetch = gpu.fetch;
  report.pairs = pairs[0];
  report.exact_pairs = pairs[1];
}

void show_report(const PrefillReport& report, const RunOptions& options) {
  fmt::print("{}", report_table(report));
  if (options.digest) fmt::print("selection_digest {}\n", digest_text(report.selection_digest));
  std::fflush(stdout);
  if (!options.json.empty()) write_text_file(options.json, report_json(report));
}

std::int64_t ring_bytes(const AttentionProblem& problem, int ranks) {
  return problem.tokens * problem.kv_heads * problem.head_dim * 2 * size_of(problem.dtype) * (ranks - 1);
}

}  // namespace ringmark::cluster
