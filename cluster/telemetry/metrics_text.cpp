#include "cluster/telemetry/metrics_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ringmark::cluster {
namespace {

using Label = std::pair<std::string_view, std::string_view>;

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

// Samples of one metric stand together behind its HELP and TYPE.
class Family {
 public:
  Family(std::string& text, const RunMetrics& run, std::string_view name, std::string_view type, std::string_view help)
      : text_(text), run_(run), name_(name) {
    text_ += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
  }
  Family& add(const std::vector<Label>& labels, double value) {
    std::string own =
        fmt::format("rank=\"{}\",command=\"{}\",policy=\"{}\"", run_.rank, escaped(run_.command), escaped(run_.policy));
    for (const auto& [name, text] : labels) own += fmt::format(",{}=\"{}\"", name, escaped(text));
    text_ += fmt::format("{}{{{}}} {}\n", name_, own, value);
    return *this;
  }
  Family& add(double value) { return add({}, value); }

 private:
  std::string& text_;
  const RunMetrics& run_;
  std::string_view name_;
};

void add_run(std::string& text, const RunMetrics& run) {
  Family(text, run, "ringmark_up", "gauge", "1 while the rank runs, 0 when it has ended.").add(run.exit_code ? 0 : 1);
  Family(text, run, "ringmark_info", "gauge", "1, with what the rank is.")
      .add({{"version", run.version}, {"host", run.host}, {"ranks", fmt::format("{}", run.ranks)}}, 1);
  Family(text, run, "ringmark_start_time_seconds", "gauge", "When the rank had joined its job, since 1970.")
      .add(run.start_time);
  Family(text, run, "ringmark_update_time_seconds", "gauge", "When these metrics were written, since 1970.")
      .add(run.update_time);
  if (!run.exit_code) return;
  Family(text, run, "ringmark_end_time_seconds", "gauge", "When the rank ended, since 1970.").add(run.update_time);
  Family(text, run, "ringmark_exit_code", "gauge", "Exit code of the rank that has ended.").add(*run.exit_code);
}

void add_stages(std::string& text, const RunMetrics& run) {
  if (run.stages.empty()) return;
  Family seconds(text, run, "ringmark_stage_seconds_total", "counter", "Time in a stage, by lane: host or a GPU's.");
  for (const StageTotals& stage : run.stages) {
    seconds.add({{"stage", stage.stage}, {"lane", stage.lane}}, stage.seconds);
  }
  Family bytes(text, run, "ringmark_stage_received_bytes_total", "counter",
               "Bytes that came from other ranks while the stage ran.");
  for (const StageTotals& stage : run.stages) {
    bytes.add({{"stage", stage.stage}, {"lane", stage.lane}}, static_cast<double>(stage.received_bytes));
  }
}

void add_progress(std::string& text, const RunMetrics& run) {
  if (run.progress.empty()) return;
  Family share(text, run, "ringmark_stage_progress_ratio", "gauge", "Share of the stage's work that is done.");
  for (const StageProgress& stage : run.progress) {
    const double done = static_cast<double>(std::clamp<std::int64_t>(stage.done, 0, stage.total));
    share.add({{"stage", stage.stage}}, stage.total > 0 ? done / static_cast<double>(stage.total) : 1.0);
  }
  Family rows(text, run, "ringmark_stage_rows_done", "gauge",
              "Work of the stage that is done: rows, of dense attention times hops, or chunks.");
  for (const StageProgress& stage : run.progress) rows.add({{"stage", stage.stage}}, static_cast<double>(stage.done));
}

}  // namespace

std::string metrics_text(const RunMetrics& run) {
  std::string text;
  add_run(text, run);
  add_stages(text, run);
  add_progress(text, run);
  Family(text, run, "ringmark_received_bytes_total", "counter", "Bytes that came from other ranks.")
      .add(static_cast<double>(run.received_bytes));
  Family(text, run, "ringmark_wait_seconds_total", "counter", "Time in waits for other ranks of 20 ms or more.")
      .add(run.wait_seconds);
  Family(text, run, "ringmark_current_wait_seconds", "gauge", "How long the rank waits already; 0 when it does not.")
      .add(run.current_wait_seconds);
  Family(text, run, "ringmark_resident_memory_bytes", "gauge", "Resident size of the rank.")
      .add(static_cast<double>(run.resident_bytes));
  Family(text, run, "ringmark_peak_memory_bytes", "gauge", "Largest resident size of the rank so far.")
      .add(static_cast<double>(run.peak_bytes));
  return text;
}

std::string metrics_path(const std::string& file, int rank) {
  constexpr std::string_view kEnding = ".prom";
  return fmt::format("{}.rank{}{}", file.substr(0, file.size() - kEnding.size()), rank, kEnding);
}

}  // namespace ringmark::cluster
