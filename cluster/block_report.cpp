#include "cluster/block_report.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <string_view>

#include "cluster/host.h"
#include "cluster/layer_fields.h"
#include "cluster/prefill_report.h"
#include "cluster/size_text.h"
#include "cluster/text_file.h"
#include "kernels/cpu/isa.h"

namespace ringmark::cluster {

BlockReport make_block_report(LayerRun& run, const AttentionPolicy& attention, const comm::ChosenTransport& transport,
                              const std::vector<std::string>& stages, const runtime::StageClock& clock,
                              std::int64_t bytes_fetched, std::span<const float> out) {
  BlockReport report;
  report.problem = run.problem();
  report.attention = attention;
  report.documents = std::ssize(run.grid().documents());
  report.ranks = run.ranks().size();
  report.threads = run.threads();
  report.instruction_set = run.by_reference() ? "fp64" : name_of(kernels::cpu::active_isa());
  report.balance = name_of(run.options().balance);
  report.backend = name_of(run.options().backend);
  report.balance_max_over_mean = partition::measure_balance(run.grid(), run.layout()).max_over_mean;
  report.transport = transport.transport ? std::string(transport.transport->name()) : "none";
  report.transport_reason = transport.why;
  report.seconds = slowest(run.ranks(), stages, std::array{&run.clock(), &clock});
  std::array<std::int64_t, 1> fetched = {bytes_fetched};
  run.ranks().all_reduce_sum("report", fetched);
  report.bytes_fetched = fetched[0];
  report.bytes_ring = ring_bytes(run.problem(), run.ranks().size());
  std::array<std::int64_t, 1> peak = {peak_memory()};
  run.ranks().all_reduce_max("report", peak);
  report.peak_memory_bytes = peak[0];
  report.positions = run.source().positions();
  const auto needles = run.source().count_needles(run.ranks(), run.layout().tokens_of(run.rank()), out);
  report.needles_planted = needles.planted;
  report.needles_recovered = needles.recovered;
  return report;
}

std::string report_table(const BlockReport& r) {
  const AttentionProblem& p = r.problem;
  std::string table;
  const auto row = [&](std::string_view name, const std::string& value) {
    table += fmt::format("{:<18}{}\n", name, value);
  };
  row("tokens", fmt::format("{} in {} document{}", p.tokens, r.documents, r.documents == 1 ? "" : "s"));
  row("heads", fmt::format("{} query, {} kv, d {}, {}", p.heads, p.kv_heads, p.head_dim, name_of(p.dtype)));
  for (const auto& [name, text] : r.rows) row(name, text);
  if (const std::string logits = logits_text(p); !logits.empty()) row("logits", logits);
  if (r.positions) row("positions", positions_text(*r.positions, p));
  row("ranks",
      fmt::format("{} x {} thread{}, {} ({:.2f} max/mean), {} {}", r.ranks, r.threads, r.threads == 1 ? "" : "s",
                  r.balance, r.balance_max_over_mean, r.backend, r.instruction_set));
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
  json["balance"] = r.balance;
  json["balance_max_over_mean"] = r.balance_max_over_mean;
  json["backend"] = r.backend;
  json["instruction_set"] = r.instruction_set;
  json["threads"] = r.threads;
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
