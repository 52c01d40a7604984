#include "cluster/scaling/scaling_command.h"

#include <fmt/format.h>

#include "cluster/job/error_line.h"
#include "cluster/options/text_file.h"
#include "cluster/scaling/scaling_options.h"
#include "cluster/scaling/scaling_report.h"
#include "cluster/scaling/scaling_run.h"
#include "cluster/scaling/scaling_table.h"
#include "cluster/scaling/study_results.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

std::string table_of(const StudyResults& results, const std::string& format) {
  if (format == "jsonl") return result_lines(results.points);
  return format == "csv" ? csv_table(scaling_rows(results)) : markdown_table(scaling_rows(results));
}

int collect(const ScalingCollectOptions& options) {
  const auto reference = options.reference.empty() ? std::vector<PointResult>() : read_result_lines(options.reference);
  std::string text;
  bool good = true;
  for (const std::string& folder : options.folders) {
    const StudyResults results = read_results(folder);
    write_text_file(folder + "/results.jsonl", result_lines(results.points));
    if (options.folders.size() > 1 && options.format == "md") text += fmt::format("\n{}\n\n", folder);
    const std::string table = table_of(results, options.format);
    const bool headed = options.format == "csv" && !text.empty();
    text += headed ? table.substr(table.find('\n') + 1) : table;
    std::vector<std::string> faults = results.disagreements;
    if (!reference.empty()) {
      const auto regressions = find_regressions(results.points, reference, options.tolerance);
      faults.insert(faults.end(), regressions.begin(), regressions.end());
    }
    for (const std::string& fault : faults) print_error(fault);
    good = good && faults.empty() && results.all_good();
  }
  if (options.output.empty()) {
    fmt::print("{}", text);
  } else {
    write_text_file(options.output, text);
  }
  return good ? 0 : 1;
}

}  // namespace

int run_scaling(const std::vector<std::string>& arguments, const Environment& environment) {
  if (arguments.empty()) fail_bad_input("scaling what? run, collect or report; see ringmark scaling --help");
  const std::string& verb = arguments.front();
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (verb == "run") return run_study(parse_scaling_run(rest, environment));
  if (verb == "collect") return collect(parse_scaling_collect(rest, environment));
  if (verb == "report") return report_study(parse_scaling_report(rest, environment));
  const std::string near = suggestion(verb, {"run", "collect", "report"});
  fail_bad_input(fmt::format("unknown command scaling {}{}", verb, near));
}

}  // namespace ringmark::cluster
