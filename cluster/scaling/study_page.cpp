#include "cluster/scaling/study_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cluster/options/size_text.h"
#include "cluster/scaling/html_text.h"
#include "cluster/scaling/plot_style.h"
#include "cluster/scaling/study_page_style.h"

namespace ringmark::cluster {
namespace {

using Cells = std::vector<std::string>;

double byte_ratio(const PointResult& a, const PointResult& b) {
  return b.bytes_moved() > 0 ? static_cast<double>(a.bytes_moved()) / static_cast<double>(b.bytes_moved()) : 0.0;
}

std::string join_list(const auto& values) { return fmt::format("{}", fmt::join(values, ", ")); }

// Cells are HTML already. Those under a heading that begins with '#' are figures, and stand right.
std::string html_table(const std::string& id, const std::string& caption, const Cells& headings,
                       const std::vector<Cells>& rows) {
  std::string html =
      fmt::format("<div class=\"wide\"><table id=\"{}\"><caption>{}</caption>\n<thead><tr>", id, caption);
  for (const std::string& heading : headings) {
    const bool figure = heading.starts_with('#');
    html += fmt::format("<th scope=\"col\"{}>{}</th>", figure ? " class=\"n\"" : "", heading.substr(figure ? 1 : 0));
  }
  html += "</tr></thead>\n<tbody>\n";
  for (const Cells& row : rows) {
    html += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      html += fmt::format("<td{}>{}</td>", headings[i].starts_with('#') ? " class=\"n\"" : "", row[i]);
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string result_table(const std::vector<ScalingRow>& rows, ScalingMode mode) {
  const bool weak = mode == ScalingMode::kWeak;
  Cells headings = {"arm",  "#nodes", "#ranks", "#tokens",  "#seconds, median",
                    "#p95", "#min",   "#max",   "#speedup", "#efficiency"};
  if (weak) headings.emplace_back("#per work");
  headings.insert(headings.end(), {"#bytes moved", "#of all K and V round", "result"});
  std::vector<Cells> cells;
  std::set<int> bases;
  for (const ScalingRow& row : rows) {
    const PointResult& r = *row.result;
    if (r.point.mode != mode) continue;
    Cells line = {html_text(r.point.arm), fmt::format("{}", r.point.nodes), fmt::format("{}", r.ranks),
                  fmt::format("{}", r.point.tokens)};
    if (r.done()) {
      bases.insert(row.base_nodes);
      const Spread s = r.seconds();
      for (const double value : {s.p50, s.p95, s.min, s.max}) line.push_back(seconds_text(value));
      line.push_back(fmt::format("{:.2f}", *row.speedup));
      line.push_back(percent(*row.efficiency));
      if (weak) line.push_back(percent(*row.work_efficiency));
      line.push_back(bytes_text(r.bytes_moved()));
      line.push_back(r.bytes_ring() > 0
                         ? percent(static_cast<double>(r.bytes_moved()) / static_cast<double>(r.bytes_ring()))
                         : "-");
      const RunRecord& run = r.runs.front();
      line.push_back(run.selection_digest.empty()
                         ? fmt::format("{} of {} needles", run.needles_recovered, run.needles_planted)
                         : fmt::format("<code>{}</code>", html_text(run.selection_digest)));
    } else {
      line.resize(headings.size() - 1, "-");
      line.push_back(fmt::format("<strong class=\"bad\">{}</strong>", html_text(r.failure->kind)));
    }
    cells.push_back(line);
  }
  const std::string caption =
      fmt::format("{} scaling. Speedup and efficiency are relative to N0 = {}: {}.", weak ? "Weak" : "Strong",
                  join_list(bases), weak ? "T(N0) / T(N)" : "T(N0) N0 / (T(N) N)");
  return html_table(fmt::format("results-{}", name_of(mode)), caption, headings, cells);
}

std::string comparison_table(const std::vector<ArmComparison>& comparisons) {
  std::vector<Cells> cells;
  for (const ArmComparison& c : comparisons) {
    cells.push_back({name_of(c.arm->point.mode), html_text(c.arm->point.arm), fmt::format("{}", c.arm->point.nodes),
                     fmt::format("{}", c.arm->point.tokens), seconds_text(c.arm->seconds().p50),
                     seconds_text(c.ring->seconds().p50), fmt::format("{:.1f}", 1 / c.time_ratio()),
                     fmt::format("{}", c.arm->bytes_moved()), fmt::format("{}", c.ring->bytes_moved()),
                     c.ring->bytes_moved() > 0 ? percent(byte_ratio(*c.arm, *c.ring)) : "-"});
  }
  return html_table("against-ring",
                    "Arms against a ring on equal input: medians, and exact bytes that all ranks receive.",
                    {"mode", "arm", "#nodes", "#tokens", "#seconds", "#ring, seconds", "#times faster", "#bytes",
                     "#ring, bytes", "#bytes of the ring's"},
                    cells);
}

std::string failures(const StudyResults& results) {
  std::vector<Cells> cells;
  for (const PointResult& r : results.points) {
    if (r.done()) continue;
    std::string details;
    for (const std::string& line : r.failure->details) details += fmt::format("<li>{}</li>", html_text(line));
    if (!details.empty())
      details = fmt::format("<details><summary>what was said</summary><ul>{}</ul></details>", details);
    cells.push_back({fmt::format("{}", r.point.index),
                     fmt::format("{} {}, {}", name_of(r.point.mode), html_text(r.point.arm), nodes_text(r.point.nodes)),
                     html_text(r.failure->kind), html_text(r.failure->text) + details});
  }
  std::string html;
  if (!cells.empty())
    html += html_table("failures", "Points without a result, and why.", {"#point", "which", "kind", "cause"}, cells);
  if (!results.disagreements.empty()) {
    html += "<p class=\"bad\"><strong>Results disagree.</strong></p><ul id=\"disagreements\">";
    for (const std::string& line : results.disagreements) html += fmt::format("<li>{}</li>", html_text(line));
    html += "</ul>\n";
  }
  return html.empty() ? "" : "<h2>What failed</h2>\n" + html;
}

std::string figures(const std::vector<DrawnPlot>& plots) {
  std::string html;
  for (const DrawnPlot& drawn : plots) {
    html += fmt::format("<figure id=\"figure-{}\"><figcaption><strong>{}.</strong> {}</figcaption>\n{}\n</figure>\n",
                        drawn.plot.name, html_text(drawn.plot.title), html_text(drawn.plot.caption), drawn.svg);
  }
  return html;
}

std::string setting(const StudyResults& results) {
  const Study& study = results.study;
  std::string html = "<dl>";
  const auto entry = [&](std::string_view name, const std::string& value) {
    html += fmt::format("<dt>{}</dt><dd>{}</dd>", name, html_text(value));
  };
  std::set<std::string> modes;
  for (const ScalingMode mode : study.modes) modes.insert(name_of(mode));
  entry("nodes", join_list(study.nodes));
  entry("ranks a node", fmt::format("{}", study.ranks_per_node));
  entry("scaling", join_list(modes));
  entry("tokens", fmt::format("{}{}", study.tokens, study.modes == std::vector{ScalingMode::kStrong} ? "" : " at N0"));
  entry("arms", join_list(study.arms));
  entry("runs a point", fmt::format("{} that count, {} before them to warm up{}", study.repeats, study.warmups,
                                    study.traced ? ", 1 behind them with a trace" : ""));
  entry("options of prefill", study.shared.empty() ? "defaults" : fmt::format("{}", fmt::join(study.shared, " ")));
  for (const PointResult& r : results.points) {
    if (!r.environment.contains("ringmark")) continue;
    std::string variables;
    for (const auto& [name, value] : r.environment["variables"].items()) {
      if (!name.starts_with("SLURM_"))
        variables += fmt::format("{}{}={}", variables.empty() ? "" : " ", name, value.get<std::string>());
    }
    entry("program",
          fmt::format("ringmark {}, {}, launched by {}", r.environment["ringmark"].get<std::string>(),
                      r.environment["mpi"].get<std::string>(), r.environment["launched_by"].get<std::string>()));
    entry("processors of a host", fmt::format("{}, as the host of point {} sees them",
                                              r.environment["processors_there"].get<int>(), r.point.index));
    if (!variables.empty()) entry("settings", variables);
    break;
  }
  std::string first = "9999";
  std::string last;
  for (const PointResult& r : results.points) {
    if (!r.began.empty()) first = std::min(first, r.began);
    last = std::max(last, r.ended);
  }
  if (!last.empty()) entry("measured", fmt::format("{} to {}", first, last));
  return html + "</dl>\n";
}

}  // namespace

std::string answer_of(const StudyResults& results, const std::vector<ScalingRow>& rows,
                      const std::vector<ArmComparison>& comparisons) {
  std::string text;
  if (!comparisons.empty()) {
    const auto most = std::max_element(comparisons.begin(), comparisons.end(), [](const auto& a, const auto& b) {
      const bool weaker = a.arm->point.mode != b.arm->point.mode && a.arm->point.mode == ScalingMode::kWeak;
      return weaker || (a.arm->point.mode == b.arm->point.mode && a.arm->point.nodes < b.arm->point.nodes);
    });
    const ArmComparison& c = *most;
    const double faster = 1 / c.time_ratio();
    text += fmt::format("On {}, {} attention over {} tokens takes {} s where a ring takes {} s: it is {:.1f} times {}",
                        nodes_text(c.arm->point.nodes), c.arm->point.arm, c.arm->point.tokens,
                        seconds_text(c.arm->seconds().p50), seconds_text(c.ring->seconds().p50),
                        faster >= 1 ? faster : 1 / faster, faster >= 1 ? "faster" : "slower");
    if (c.ring->bytes_moved() > 0) {
      text += fmt::format(", and moves {} between ranks where the ring moves {} ({})", bytes_text(c.arm->bytes_moved()),
                          bytes_text(c.ring->bytes_moved()), percent(byte_ratio(*c.arm, *c.ring)));
    }
    text += ". ";
  }
  for (const std::string& arm : results.study.arms) {
    const ScalingRow* largest = nullptr;
    for (const ScalingRow& row : rows) {
      if (row.result->done() && row.result->point.arm == arm && row.result->point.mode == results.study.modes.front())
        largest = &row;
    }
    if (largest == nullptr || largest->result->point.nodes == largest->base_nodes) continue;
    text += fmt::format("Efficiency of {} on {}, {} scaling relative to N0 = {}: {}. ", arm,
                        nodes_text(largest->result->point.nodes), name_of(results.study.modes.front()),
                        largest->base_nodes, percent(*largest->efficiency));
  }
  const auto done = std::count_if(results.points.begin(), results.points.end(), [](const auto& r) { return r.done(); });
  text += fmt::format("{} of {} points have a result", done, results.points.size());
  text += results.disagreements.empty() ? ", and the runs of each arm agree on it whatever the number of nodes."
                                        : "; results disagree.";
  return text;
}

std::string study_page(const StudyResults& results, const std::vector<ScalingRow>& rows,
                       const std::vector<ArmComparison>& comparisons, const std::vector<DrawnPlot>& plots,
                       const PageTexts& texts) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, "
      "initial-scale=1\">\n<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<main>\n"
      "<h1>{0}</h1>\n<p id=\"answer\">{2}</p>\n",
      html_text(texts.title), kPageStyle, html_text(answer_of(results, rows, comparisons)));
  if (!texts.note.empty())
    html += fmt::format("<p class=\"note\"><strong>Note.</strong> {}</p>\n", html_text(texts.note));
  for (const ScalingMode mode : results.study.modes) html += result_table(rows, mode);
  if (!comparisons.empty()) html += "<h2>Against a ring</h2>\n" + comparison_table(comparisons);
  html += failures(results);
  html += "<h2>Figures</h2>\n" + figures(plots);
  html += "<h2>What was run</h2>\n" + setting(results);
  html +=
      "<p>Seconds are those of attention on the slowest rank: from its input in memory to its output in memory. Every "
      "run "
      "checked that it chose the same chunks, or found the same needles, as the others of its arm. Definitions: "
      "docs/scaling.md of "
      "Ringmark.</p>\n</main>\n</body>\n</html>\n";
  return html;
}

}  // namespace ringmark::cluster
