#include "cluster/scaling/study_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cluster/options/size_text.h"
#include "cluster/scaling/plot_style.h"

namespace ringmark::cluster {
namespace {

constexpr double kMib = 1024.0 * 1024.0;

std::size_t place_in(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

// Done rows of one mode and arm, nodes ascending.
std::vector<const ScalingRow*> rows_of(const std::vector<ScalingRow>& rows, ScalingMode mode, const std::string& arm) {
  std::vector<const ScalingRow*> found;
  for (const ScalingRow& row : rows) {
    if (row.result->done() && row.result->point.mode == mode && row.result->point.arm == arm) found.push_back(&row);
  }
  return found;
}

std::string node_axis(const Study& study) {
  std::string tics;
  for (const int nodes : study.nodes) tics += fmt::format("{}'{}' {}", tics.empty() ? "" : ",", nodes, nodes);
  return fmt::format("set xlabel 'nodes, {} rank{} each'\nset logscale x 2\nset xtics ({})\nset xrange [{}:{}]\n",
                     study.ranks_per_node, study.ranks_per_node == 1 ? "" : "s", tics, 0.87 * study.nodes.front(),
                     1.15 * study.nodes.back());
}

std::string key_of(const std::string& arm) { return gnuplot_text(arm); }

// Lines `plot` draws, joined by commas.
std::string plot_command(const std::vector<std::string>& lines) {
  return fmt::format("plot {}\n", fmt::join(lines, ", \\\n     "));
}

std::string tokens_note(const StudyResults& results, ScalingMode mode) {
  const Study& study = results.study;
  if (mode == ScalingMode::kStrong) return fmt::format("{} tokens on every number of nodes", study.tokens);
  return fmt::format("{} tokens a node", study.tokens / study.first_nodes());
}

Plot time_plot(const StudyResults& results, const std::vector<ScalingRow>& rows, ScalingMode mode) {
  Plot plot;
  plot.name = fmt::format("time-{}", name_of(mode));
  plot.title = "Time of attention";
  plot.caption = fmt::format(
      "{}. Points are medians of {} runs, bars reach from the fastest to the slowest, dashed is what "
      "{} scaling would be at its best from the fewest nodes on. A run's time is that of its slowest rank.",
      tokens_note(results, mode), results.study.repeats, name_of(mode));
  plot.script = frame_script() + node_axis(results.study) +
                "set ylabel 'seconds'\nset logscale y 2\nset format y '%g'\nset grid xtics\n";
  std::vector<std::string> lines;
  for (const std::string& arm : results.study.arms) {
    const auto done = rows_of(rows, mode, arm);
    if (done.empty()) continue;
    const std::size_t place = place_in(results.study.arms, arm);
    plot.script += fmt::format("$arm{} << END\n", place);
    plot.alt += fmt::format("{}: ", arm);
    for (const ScalingRow* row : done) {
      const Spread s = row->result->seconds();
      plot.script += fmt::format("{} {:.6g} {:.6g} {:.6g} {:.6g}\n", row->result->point.nodes, s.p50, s.min, s.max,
                                 *row->ideal_seconds);
      plot.alt += fmt::format("{} s on {}, ", seconds_text(s.p50), nodes_text(row->result->point.nodes));
    }
    plot.script += "END\n";
    lines.push_back(
        fmt::format("$arm{} using 1:5 with lines dashtype 2 linewidth 1.2 linecolor rgb '{}' title \"{} ideal\"", place,
                    colour(place), key_of(arm)));
    lines.push_back(
        fmt::format("$arm{0} using 1:2:3:4 with yerrorlines linewidth 2 pointtype {1} pointsize 1 linecolor rgb '{2}' "
                    "title \"{3}\"",
                    place, place * 2 + 5, colour(place), key_of(arm)));
  }
  if (lines.empty()) return {};
  plot.script += plot_command(lines);
  return plot;
}

Plot efficiency_plot(const StudyResults& results, const std::vector<ScalingRow>& rows, ScalingMode mode) {
  Plot plot;
  const bool weak = mode == ScalingMode::kWeak;
  plot.name = fmt::format("efficiency-{}", name_of(mode));
  plot.title = fmt::format("Efficiency, {} scaling", name_of(mode));
  plot.caption = weak ? "T(N0) / T(N). Dotted: pairs of query and key a second and node over those at N0, which asks "
                        "of dense attention, "
                        "whose work grows with the square of the tokens, only what it can give."
                      : "T(N0) N0 / (T(N) N), of medians: 100% when time falls in proportion to nodes.";
  plot.script = frame_script() + node_axis(results.study) + "set ylabel 'efficiency, %'\nset yrange [0:*]\n";
  std::vector<std::string> lines = {"100 with lines dashtype 2 linecolor rgb '#777777' title 'ideal'"};
  std::set<int> bases;
  for (const std::string& arm : results.study.arms) {
    const auto done = rows_of(rows, mode, arm);
    if (done.empty()) continue;
    const std::size_t place = place_in(results.study.arms, arm);
    plot.script += fmt::format("$arm{} << END\n", place);
    plot.alt += fmt::format("{}: ", arm);
    for (const ScalingRow* row : done) {
      bases.insert(row->base_nodes);
      plot.script += fmt::format("{} {:.4g} {:.4g}\n", row->result->point.nodes, 100 * *row->efficiency,
                                 100 * row->work_efficiency.value_or(0));
      plot.alt += fmt::format("{} on {}, ", percent(*row->efficiency), nodes_text(row->result->point.nodes));
    }
    plot.script += "END\n";
    lines.push_back(fmt::format(
        "$arm{} using 1:2 with linespoints linewidth 2 pointtype {} pointsize 1 linecolor rgb '{}' title \"{}\"", place,
        place * 2 + 5, colour(place), key_of(arm)));
    if (weak) {
      lines.push_back(
          fmt::format("$arm{} using 1:3 with lines dashtype 3 linewidth 1.6 linecolor rgb '{}' title \"{} per work\"",
                      place, colour(place), key_of(arm)));
    }
  }
  if (lines.size() == 1) return {};
  std::string names;
  for (const int base : bases) names += fmt::format("{}{}", names.empty() ? "" : ", ", base);
  plot.caption += fmt::format(" N0 = {}.", names);
  plot.script += plot_command(lines);
  return plot;
}

Plot bytes_plot(const StudyResults& results, const std::vector<ScalingRow>& rows, ScalingMode mode) {
  Plot plot;
  plot.name = fmt::format("bytes-{}", name_of(mode));
  plot.title = "Bytes moved between ranks";
  plot.caption =
      "Exact, all ranks: keys, values, landmarks, queries and partial results that were received. Black marks: what a "
      "ring that "
      "passes all K and V round receives, (ranks - 1) times all K and V; the arm `ring` passes on only what a causal "
      "mask "
      "lets somebody see.";
  plot.script = frame_script() +
                "set ylabel 'MiB'\nset yrange [0:*]\nset offsets 0, 0, graph 0.08, 0\nset style data histogram\nset "
                "style histogram clustered gap 1.2\n"
                "set style fill solid 0.85 noborder\nset boxwidth 0.95\n";
  plot.script += fmt::format("set xlabel 'nodes, {} rank{} each'\n", results.study.ranks_per_node,
                             results.study.ranks_per_node == 1 ? "" : "s");
  const std::size_t arms = results.study.arms.size();
  std::string data = "$bytes << END\n";
  std::string ring = "$ring << END\n";
  bool any = false;
  for (std::size_t i = 0; i < results.study.nodes.size(); ++i) {
    const int nodes = results.study.nodes[i];
    data += fmt::format("\"{}\"", nodes);
    std::int64_t ring_bytes = -1;
    for (const std::string& arm : results.study.arms) {
      const auto done = rows_of(rows, mode, arm);
      const auto at =
          std::find_if(done.begin(), done.end(), [&](const ScalingRow* r) { return r->result->point.nodes == nodes; });
      if (at == done.end()) {
        data += " ?";
        continue;
      }
      any = true;
      const PointResult& r = *(*at)->result;
      ring_bytes = r.bytes_ring();
      data += fmt::format(" {:.6g}", static_cast<double>(r.bytes_moved()) / kMib);
      plot.alt += fmt::format("{} on {}: {}, ", arm, nodes_text(nodes), bytes_text(r.bytes_moved()));
    }
    data += "\n";
    if (ring_bytes >= 0) ring += fmt::format("{} {:.6g} 0.42\n", i, static_cast<double>(ring_bytes) / kMib);
  }
  if (!any) return {};
  plot.script += data + "END\n" + ring + "END\n";
  std::vector<std::string> lines;
  for (std::size_t place = 0; place < arms; ++place) {
    lines.push_back(fmt::format("$bytes using {}:xtic(1) linecolor rgb '{}' title \"{}\"", place + 2, colour(place),
                                key_of(results.study.arms[place])));
  }
  lines.emplace_back(
      "$ring using 1:2:3 with xerrorbars pointtype 0 linewidth 2 linecolor rgb '#000000' title 'all K and V'");
  plot.script += plot_command(lines);
  return plot;
}

// Stages of attention in the order in which they run.
std::vector<std::string> stages_of(const std::vector<ScalingRow>& rows, ScalingMode mode) {
  const std::vector<std::string> order = {"store",  "landmarks", "plan",     "exchange", "fetch",
                                          "window", "pool",      "compress", "score",    "settle",
                                          "exact",  "select",    "attend",   "merge",    "fuse"};
  std::set<std::string> present;
  for (const ScalingRow& row : rows) {
    if (!row.result->done() || row.result->point.mode != mode) continue;
    for (const auto& [stage, seconds] : row.result->stages()) {
      if (seconds > 0 && stage != "load" && stage != "write" && stage != "total") present.insert(stage);
    }
  }
  std::vector<std::string> stages;
  for (const std::string& stage : order) {
    if (present.erase(stage) > 0) stages.push_back(stage);
  }
  stages.insert(stages.end(), present.begin(), present.end());
  return stages;
}

Plot stage_plot(const StudyResults& results, const std::vector<ScalingRow>& rows, ScalingMode mode) {
  Plot plot;
  plot.name = fmt::format("stages-{}", name_of(mode));
  plot.title = "Where the time goes";
  plot.caption =
      "Median seconds of each stage on the rank that it takes longest on; that is not the same rank for all stages, so "
      "that a stack may be "
      "higher than the time of the whole. `fetch` is waiting for blocks that no work hides.";
  const auto stages = stages_of(rows, mode);
  std::string data = "$stages << END\n";
  bool any = false;
  for (const std::string& arm : results.study.arms) {
    if (any) data += "\"\"" + std::string(2 * stages.size(), ' ') + "\n";
    for (const ScalingRow* row : rows_of(rows, mode, arm)) {
      data += fmt::format("\"{}\\n{}\"", row->result->point.nodes, gnuplot_text(arm));
      const auto medians = row->result->stages();
      plot.alt += fmt::format("{} on {}: ", arm, nodes_text(row->result->point.nodes));
      for (const std::string& stage : stages) {
        const auto found = medians.find(stage);
        const double seconds = found == medians.end() ? 0 : found->second;
        data += fmt::format(" {:.6g}", seconds);
        if (seconds > 0) plot.alt += fmt::format("{} {} s, ", stage, seconds_text(seconds));
      }
      data += "\n";
      any = true;
    }
  }
  if (!any || stages.empty()) return {};
  plot.script =
      frame_script() +
      "set ylabel 'seconds'\nset yrange [0:*]\nset xlabel 'nodes'\nset style data histogram\n"
      "set style histogram rowstacked\nset style fill solid 0.9 noborder\nset boxwidth 0.72\nset key invert\n" +
      data + "END\n";
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    lines.push_back(fmt::format("$stages using {}:xtic(1) linecolor rgb '{}' title \"{}\"", i + 2, colour(i),
                                gnuplot_text(stages[i])));
  }
  plot.script += plot_command(lines);
  return plot;
}

}  // namespace

std::vector<Plot> mode_plots(const StudyResults& results, const std::vector<ScalingRow>& rows, ScalingMode mode) {
  std::vector<Plot> plots;
  for (const auto& make : {time_plot, efficiency_plot, bytes_plot, stage_plot}) {
    Plot plot = make(results, rows, mode);
    if (!plot.script.empty()) plots.push_back(std::move(plot));
  }
  return plots;
}

std::vector<Plot> comparison_plots(const std::vector<ArmComparison>& comparisons) {
  std::vector<Plot> plots;
  for (const ScalingMode mode : {ScalingMode::kStrong, ScalingMode::kWeak}) {
    Plot plot;
    plot.name = fmt::format("against-ring-{}", name_of(mode));
    plot.title = fmt::format("Against a ring, {} scaling", name_of(mode));
    plot.caption =
        "Time and bytes over those of the ring at the same nodes and tokens; below 1 is less than the ring takes.";
    std::vector<std::string> names;
    std::vector<std::string> data;
    std::set<int> nodes;
    for (const ArmComparison& c : comparisons) {
      if (c.arm->point.mode != mode) continue;
      if (place_in(names, c.arm->point.arm) == names.size()) {
        names.push_back(c.arm->point.arm);
        data.emplace_back();
      }
      const double bytes = c.ring->bytes_moved() > 0
                               ? static_cast<double>(c.arm->bytes_moved()) / static_cast<double>(c.ring->bytes_moved())
                               : NAN;
      nodes.insert(c.arm->point.nodes);
      data[place_in(names, c.arm->point.arm)] += fmt::format("{} {:.5g} {}\n", c.arm->point.nodes, c.time_ratio(),
                                                             std::isnan(bytes) ? "?" : fmt::format("{:.5g}", bytes));
      plot.alt += fmt::format("{} on {}: {:.2f} of the ring's time, ", c.arm->point.arm, nodes_text(c.arm->point.nodes),
                              c.time_ratio());
    }
    if (names.empty()) continue;
    std::string tics;
    for (const int count : nodes) tics += fmt::format("{}'{}' {}", tics.empty() ? "" : ",", count, count);
    plot.script = frame_script() + fmt::format(
                                       "set xlabel 'nodes'\nset logscale x 2\nset xtics ({})\nset xrange [{}:{}]\nset "
                                       "ylabel 'over the ring'\nset yrange [0:*]\n",
                                       tics, 0.87 * *nodes.begin(), 1.15 * *nodes.rbegin());
    std::vector<std::string> lines = {"1 with lines dashtype 2 linecolor rgb '#777777' title 'ring'"};
    for (std::size_t i = 0; i < names.size(); ++i) {
      plot.script += fmt::format("$arm{} << END\n{}END\n", i, data[i]);
      lines.push_back(
          fmt::format("$arm{} using 1:2 with linespoints linewidth 2 pointtype 7 linecolor rgb '{}' title \"{}: time\"",
                      i, colour(2 * i), gnuplot_text(names[i])));
      lines.push_back(fmt::format(
          "$arm{} using 1:3 with linespoints linewidth 2 dashtype 4 pointtype 9 linecolor rgb '{}' title \"{}: bytes\"",
          i, colour(2 * i + 1), gnuplot_text(names[i])));
    }
    plot.script += plot_command(lines);
    plots.push_back(std::move(plot));
  }
  return plots;
}

std::vector<Plot> timeline_plots(const std::vector<ArmTimeline>& timelines) {
  Plot plot;
  std::vector<std::string> stages;
  std::vector<std::string> data;
  std::string tics;
  int row = 0;
  for (const ArmTimeline& timeline : timelines) {
    std::vector<std::string> lanes;
    double end = 0;
    for (const TimelineSpan& span : timeline.spans) {
      if (place_in(lanes, span.lane) == lanes.size()) {
        lanes.push_back(span.lane);
        tics += fmt::format("{}\"{}, {}\" {}", tics.empty() ? "" : ",", gnuplot_text(timeline.point.arm),
                            gnuplot_text(span.lane), -(row + static_cast<int>(lanes.size()) - 1));
      }
      const std::size_t stage = place_in(stages, span.stage);
      if (stage == stages.size()) {
        stages.push_back(span.stage);
        data.emplace_back();
      }
      const double y = -(row + static_cast<double>(place_in(lanes, span.lane)));
      data[stage] += fmt::format("{:.6g} {:.6g} {:.6g} {:.6g} {:.6g} {:.6g}\n", span.start, y, span.start,
                                 span.start + span.seconds, y - 0.36, y + 0.36);
      end = std::max(end, span.start + span.seconds);
    }
    row += static_cast<int>(lanes.size());
    if (!lanes.empty()) {
      plot.alt += fmt::format("{} on {}: {} spans, the last ends after {} s. ", timeline.point.arm,
                              nodes_text(timeline.point.nodes), timeline.spans.size(), seconds_text(end));
      plot.caption += fmt::format("{}{}", plot.caption.empty() ? "" : "; ",
                                  fmt::format("{} with {} tokens on {}", timeline.point.arm, timeline.point.tokens,
                                              nodes_text(timeline.point.nodes)));
    }
  }
  if (stages.empty()) return {};
  plot.name = "timeline";
  plot.title = "What rank 0 does when";
  plot.caption = "One traced run an arm, from the rank's first stage behind the load of its input: " + plot.caption +
                 ". White is waiting for other ranks between stages.";
  plot.height = 150 + 60 * row;
  plot.script = frame_script() + fmt::format(
                                     "unset grid\nset xlabel 'seconds'\nset xrange [0:*]\nset yrange [{}:0.6]\nset "
                                     "ytics ({})\nset style fill solid 0.9 noborder\n",
                                     -(row - 1) - 0.6, tics);
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    plot.script += fmt::format("$stage{} << END\n{}END\n", i, data[i]);
    lines.push_back(fmt::format("$stage{} using 1:2:3:4:5:6 with boxxyerror linecolor rgb '{}' title \"{}\"", i,
                                colour(i), gnuplot_text(stages[i])));
  }
  plot.script += plot_command(lines);
  return {plot};
}

}  // namespace ringmark::cluster
