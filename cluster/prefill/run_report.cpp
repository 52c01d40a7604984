#include "cluster/prefill/run_report.h"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cluster/job/host.h"
#include "cluster/prefill/layer_run.h"
#include "cluster/prefill/prefill_report.h"
#include "kernels/cpu/isa.h"

namespace ringmark::cluster {

RunReport report_of_run(const LayerRun& run, const std::vector<std::string>& stages, const runtime::StageClock& clock,
                        std::span<const float> out) {
  RunReport report;
  report.problem = run.problem();
  report.documents = std::ssize(run.grid().documents());
  report.ranks = run.ranks().size();
  report.threads = run.threads();
  report.instruction_set = run.by_reference() ? "fp64" : name_of(kernels::cpu::active_isa());
  report.balance = name_of(run.options().balance);
  report.backend = name_of(run.options().backend);
  report.balance_max_over_mean = partition::measure_balance(run.grid(), run.layout()).max_over_mean;
  report.seconds = slowest(run.ranks(), stages, std::array{&run.clock(), &clock});
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

void add_row(std::string& table, std::string_view name, const std::string& value) {
  table += fmt::format("{:<18}{}\n", name, value);
}

std::string tokens_text(const RunReport& report) {
  return fmt::format("{} in {} document{}", report.problem.tokens, report.documents, report.documents == 1 ? "" : "s");
}

std::string heads_text(const AttentionProblem& problem) {
  return fmt::format("{} query, {} kv, d {}, {}", problem.heads, problem.kv_heads, problem.head_dim,
                     name_of(problem.dtype));
}

std::string ranks_text(const RunReport& report) {
  return fmt::format("{} x {} thread{}, {} ({:.2f} max/mean), {} {}", report.ranks, report.threads,
                     report.threads == 1 ? "" : "s", report.balance, report.balance_max_over_mean, report.backend,
                     report.instruction_set);
}

void add_rank_fields(nlohmann::ordered_json& json, const RunReport& report) {
  json["balance"] = report.balance;
  json["balance_max_over_mean"] = report.balance_max_over_mean;
  json["backend"] = report.backend;
  json["instruction_set"] = report.instruction_set;
  json["threads"] = report.threads;
}

}  // namespace ringmark::cluster
