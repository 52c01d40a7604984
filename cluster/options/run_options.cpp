#include "cluster/options/run_options.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "cluster/options/option_values.h"
#include "cluster/options/text_file.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

constexpr std::int64_t kMaxThreads = 4096;
constexpr double kMaxDeadlineSeconds = 7 * 24 * 3600;
constexpr double kMaxMemoryGib = 1 << 20;
constexpr std::int64_t kMaxBudgetMib = std::int64_t{1} << 20;
constexpr std::array kBlockFormats = {kvstore::BlockFormat::kAsInput, kvstore::BlockFormat::kBfloat16,
                                      kvstore::BlockFormat::kFloat16, kvstore::BlockFormat::kFp8,
                                      kvstore::BlockFormat::kInt8,    kvstore::BlockFormat::kInt4};

void read_budget(const OptionValues& values, RunOptions& options) {
  options.kv_budget_mib = read_count(values, "kv-budget-mib", 0, kMaxBudgetMib);
  options.spill_dir = read_text(values, "spill-dir");
  const OptionValue* const folder = find_value(values, "spill-dir");
  if (options.kv_budget_mib.has_value() != (folder != nullptr)) {
    fail_bad_input("--kv-budget-mib MIB and --spill-dir DIR are given together or not at all");
  }
  if (folder != nullptr && !std::filesystem::is_directory(options.spill_dir)) {
    fail_bad_input(fmt::format("{} = {} is no folder", folder->origin, options.spill_dir));
  }
}

}  // namespace

std::optional<std::int64_t> RunOptions::memory_bytes() const {
  if (!memory_gib) return std::nullopt;
  return static_cast<std::int64_t>(*memory_gib * 1024.0 * 1024.0 * 1024.0);
}

std::optional<comm::SpillPolicy> RunOptions::spill() const {
  if (!kv_budget_mib) return std::nullopt;
  return comm::SpillPolicy{*kv_budget_mib << 20, spill_dir};
}

void add_execution_options(OptionGroup& group) {
  const RunOptions defaults;
  group
      .add("kv-budget-mib", "MIB",
           "blocks that other ranks read in memory, MiB a rank; the rest lies in a file (default: all)")
      .add("spill-dir", "DIR", "folder of that file, on a disk; needs --kv-budget-mib")
      .add("memory-gib", "GIB",
           "memory limit, GiB a rank (default: free memory of the host or the GPU over the ranks on it)")
      .add("deadline", "SECONDS",
           fmt::format("longest wait for other ranks, seconds (default: {})", defaults.deadline_seconds))
      .add("threads", "N", "threads a rank (default: 0, as many as the process is bound to)");
}

void add_report_options(OptionGroup& group) {
  group.add("json", "FILE", "write the report as JSON (default: none)")
      .add_switch("digest", "print one line `selection_digest <hex>` besides the table")
      .add(
          "log-dir", "DIR",
          "where each rank keeps its log, log.RANK.jsonl, and a failing one its first cause, error.RANK.json (default: "
          "none)")
      .add_switch("quiet", "no progress on stderr");
  add_telemetry_options(group);
  group.add_switch("help", "print this text");
}

void read_run_options(const OptionValues& values, RunOptions& options) {
  options.memory_gib = read_positive(values, "memory-gib", kMaxMemoryGib);
  options.deadline_seconds = read_positive(values, "deadline", kMaxDeadlineSeconds).value_or(options.deadline_seconds);
  options.threads = read_count(values, "threads", 0, kMaxThreads).value_or(options.threads);
  read_budget(values, options);
  options.json = read_text(values, "json");
  options.digest = read_switch(values, "digest");
  options.log_dir = read_text(values, "log-dir");
  options.quiet = read_switch(values, "quiet");
  options.telemetry = read_telemetry_options(values);
}

std::optional<kvstore::BlockFormat> read_block_format(const OptionValues& values) {
  return read_choice<kvstore::BlockFormat>(values, "kv-dtype", kBlockFormats,
                                           [](kvstore::BlockFormat format) { return name_of(format); });
}

void check_run_files(const RunOptions& options, RankId rank) {
  if (!options.log_dir.empty() && !std::filesystem::is_directory(options.log_dir)) {
    fail_bad_input(fmt::format("log-dir = {} is no folder", options.log_dir));
  }
  if (rank != RankId(0)) return;
  if (!options.json.empty()) check_text_file(options.json);
  if (!options.telemetry.trace.empty()) check_text_file(options.telemetry.trace);
}

}  // namespace ringmark::cluster
