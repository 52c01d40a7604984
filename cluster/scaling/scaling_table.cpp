#include "cluster/scaling/scaling_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cluster/options/size_text.h"

namespace ringmark::cluster {
namespace {

// N0's point, or that of the fewest nodes that is done.
const PointResult* base_of(const StudyResults& results, const StudyPoint& point) {
  const PointResult* base = nullptr;
  for (const PointResult& other : results.points) {
    const bool same = other.point.mode == point.mode && other.point.arm == point.arm;
    if (same && other.done() && (base == nullptr || other.point.nodes < base->point.nodes)) base = &other;
  }
  return base;
}

ScalingRow row_of(const StudyResults& results, const PointResult& result) {
  ScalingRow row;
  row.result = &result;
  if (!result.done()) return row;
  const PointResult& base = *base_of(results, result.point);
  const double t0 = base.seconds().p50;
  const double t = result.seconds().p50;
  const int n0 = base.point.nodes;
  const int n = result.point.nodes;
  row.base_nodes = n0;
  row.speedup = t0 / t;
  if (result.point.mode == ScalingMode::kStrong) {
    row.ideal_seconds = t0 * n0 / n;
    row.efficiency = strong_efficiency(t0, n0, t, n);
  } else {
    row.ideal_seconds = t0;
    row.efficiency = weak_efficiency(t0, t);
    row.work_efficiency = weak_work_efficiency(t0, n0, base.point.tokens, t, n, result.point.tokens);
  }
  return row;
}

std::string csv_cell(std::string text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  for (std::size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) text.insert(at, 1, '"');
  return '"' + text + '"';
}

std::string markdown_cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
  return text;
}

std::string line_of(const std::vector<std::string>& cells, std::string_view separator) {
  return fmt::format("{}\n", fmt::join(cells, separator));
}

std::string number(const std::optional<double>& value) { return value ? fmt::format("{}", *value) : ""; }

std::vector<std::string> csv_cells(const ScalingRow& row) {
  const PointResult& r = *row.result;
  std::vector<std::string> cells = {
      fmt::format("{}", r.point.index), name_of(r.point.mode),           r.point.arm,
      fmt::format("{}", r.point.nodes), fmt::format("{}", r.ranks),      fmt::format("{}", r.point.tokens),
      r.done() ? "done" : "failed",     fmt::format("{}", r.runs.size())};
  if (r.done()) {
    const Spread s = r.seconds();
    for (const double value : {s.p50, s.p95, s.min, s.max}) cells.push_back(fmt::format("{}", value));
    cells.push_back(fmt::format("{}", row.base_nodes));
    for (const auto& value : {row.ideal_seconds, row.speedup, row.efficiency, row.work_efficiency}) {
      cells.push_back(number(value));
    }
    cells.insert(cells.end(),
                 {fmt::format("{}", r.bytes_moved()), fmt::format("{}", r.bytes_ring()),
                  fmt::format("{}", r.runs.front().peak_memory_bytes), r.runs.front().selection_digest, ""});
  } else {
    cells.resize(cells.size() + 13);
    cells.push_back(r.failure->text);
  }
  for (std::string& cell : cells) cell = csv_cell(cell);
  return cells;
}

}  // namespace

std::vector<ScalingRow> scaling_rows(const StudyResults& results) {
  std::vector<ScalingRow> rows;
  for (const PointResult& result : results.points) rows.push_back(row_of(results, result));
  return rows;
}

std::vector<ArmComparison> compare_with_ring(const StudyResults& results) {
  std::vector<ArmComparison> all;
  for (const PointResult& arm : results.points) {
    if (!arm.done() || arm.point.arm == "ring") continue;
    const auto ring = std::find_if(results.points.begin(), results.points.end(), [&](const PointResult& r) {
      return r.done() && r.point.arm == "ring" && r.point.mode == arm.point.mode && r.point.nodes == arm.point.nodes &&
             r.point.tokens == arm.point.tokens;
    });
    if (ring != results.points.end()) all.push_back({&arm, &*ring});
  }
  return all;
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

std::string seconds_text(double seconds) {
  return seconds < 1     ? fmt::format("{:.3f}", seconds)
         : seconds < 100 ? fmt::format("{:.2f}", seconds)
                         : fmt::format("{:.1f}", seconds);
}

std::string markdown_table(const std::vector<ScalingRow>& rows) {
  std::string table =
      "| mode | arm | nodes | ranks | tokens | runs | seconds p50 | p95 | min | max | ideal | speedup | efficiency | "
      "per work | bytes moved | of a ring's | result |\n"
      "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n";
  for (const ScalingRow& row : rows) {
    const PointResult& r = *row.result;
    std::vector<std::string> cells = {name_of(r.point.mode),
                                      r.point.arm,
                                      fmt::format("{}", r.point.nodes),
                                      fmt::format("{}", r.ranks),
                                      fmt::format("{}", r.point.tokens),
                                      fmt::format("{}", r.runs.size())};
    if (r.done()) {
      const Spread s = r.seconds();
      for (const double value : {s.p50, s.p95, s.min, s.max, *row.ideal_seconds}) cells.push_back(seconds_text(value));
      cells.push_back(fmt::format("{:.2f}", *row.speedup));
      cells.push_back(fmt::format("{} of N0 = {}", percent(*row.efficiency), row.base_nodes));
      cells.push_back(row.work_efficiency ? percent(*row.work_efficiency) : "");
      cells.push_back(bytes_text(r.bytes_moved()));
      cells.push_back(r.bytes_ring() > 0
                          ? percent(static_cast<double>(r.bytes_moved()) / static_cast<double>(r.bytes_ring()))
                          : "");
      const RunRecord& run = r.runs.front();
      cells.push_back(run.selection_digest.empty()
                          ? fmt::format("{} of {} needles", run.needles_recovered, run.needles_planted)
                          : run.selection_digest);
    } else {
      cells.resize(cells.size() + 10);
      cells.push_back(fmt::format("{}: {}", r.failure->kind, markdown_cell(r.failure->text)));
    }
    table += "| " + fmt::format("{}", fmt::join(cells, " | ")) + " |\n";
  }
  return table;
}

std::string csv_table(const std::vector<ScalingRow>& rows) {
  std::string table =
      "point,mode,arm,nodes,ranks,tokens,status,runs,seconds_p50,seconds_p95,seconds_min,seconds_max,base_nodes,"
      "ideal_seconds,speedup,efficiency,work_efficiency,bytes_moved,bytes_ring,peak_memory_bytes,selection_digest,"
      "cause\n";
  for (const ScalingRow& row : rows) table += line_of(csv_cells(row), ",");
  return table;
}

std::string result_lines(const std::vector<PointResult>& points) {
  std::string lines;
  for (const PointResult& point : points) lines += result_json(point).dump() + "\n";
  return lines;
}

}  // namespace ringmark::cluster
