#include "cluster/scaling/scaling_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "cluster/options/text_file.h"
#include "cluster/scaling/file_text.h"
#include "cluster/scaling/study_page.h"
#include "cluster/scaling/study_plots.h"
#include "cluster/scaling/study_results.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

namespace fs = std::filesystem;

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_bad_input(fmt::format("{}: cannot be made: {}", path, error.message()));
}

// Of each arm on the most nodes that have a trace, the first mode of the study first.
std::vector<ArmTimeline> read_timelines(const StudyResults& results) {
  std::vector<ArmTimeline> timelines;
  const int launch = results.study.warmups + results.study.repeats;
  for (const std::string& arm : results.study.arms) {
    ArmTimeline timeline;
    for (const PointResult& result : results.points) {
      if (!result.done() || result.point.arm != arm || result.point.mode != results.study.modes.front()) continue;
      const std::string path = fmt::format("{}/{}/{}/trace.json", attempts_folder(results.folder, result.point.index),
                                           result.attempt, launch);
      if (fs::exists(path)) timeline = {result.point, parse_timeline(file_text(path), path, 0)};
    }
    if (!timeline.spans.empty()) timelines.push_back(std::move(timeline));
  }
  return timelines;
}

std::vector<DrawnPlot> draw_all(const StudyResults& results, const std::vector<ScalingRow>& rows,
                                const std::vector<ArmComparison>& comparisons, const std::string& folder) {
  std::vector<Plot> plots;
  const auto add = [&](std::vector<Plot> more) { std::move(more.begin(), more.end(), std::back_inserter(plots)); };
  for (const ScalingMode mode : results.study.modes) add(mode_plots(results, rows, mode));
  add(comparison_plots(comparisons));
  add(timeline_plots(read_timelines(results)));
  const StopSignals signals;
  std::vector<DrawnPlot> drawn;
  for (const Plot& plot : plots) {
    drawn.push_back({plot, inline_svg(draw(plot, folder, signals), plot.name, plot.title + ". " + plot.alt)});
  }
  return drawn;
}

std::string title_of(const StudyResults& results, const ScalingReportOptions& options) {
  if (!options.title.empty()) return options.title;
  const Study& study = results.study;
  return fmt::format("Prefill of {} tokens on {} to {} nodes: {}", study.tokens, study.nodes.front(),
                     study.nodes.back(), fmt::join(study.arms, ", "));
}

}  // namespace

int report_study(const ScalingReportOptions& options) {
  const StudyResults results = read_results(options.folder);
  const fs::path html = fs::absolute(options.html).lexically_normal();
  const std::string beside = html.parent_path().string();
  make_folder(beside);
  check_text_file(html.string());
  if (options.plots) {
    check_gnuplot();
    make_folder(beside + "/plots");
  }
  const auto rows = scaling_rows(results);
  const auto comparisons = compare_with_ring(results);
  const auto plots = options.plots ? draw_all(results, rows, comparisons, beside + "/plots") : std::vector<DrawnPlot>();
  write_text_file(beside + "/scaling.md", markdown_table(rows));
  write_text_file(beside + "/scaling.csv", csv_table(rows));
  write_text_file(html.string(),
                  study_page(results, rows, comparisons, plots, {title_of(results, options), options.note}));
  fmt::print("{}\n{}\n", answer_of(results, rows, comparisons), html.string());
  return results.all_good() ? 0 : 1;
}

}  // namespace ringmark::cluster
