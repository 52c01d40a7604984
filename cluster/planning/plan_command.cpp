#include "cluster/planning/plan_command.h"

#include <fmt/format.h>

#include <cstdio>

#include "cluster/options/text_file.h"
#include "cluster/planning/plan_report.h"

namespace ringmark::cluster {

int run_plan(const std::vector<std::string>& arguments, const Environment& environment) {
  const PlanOptions options = parse_plan_options(arguments, environment);
  if (!options.json.empty()) check_text_file(options.json);
  const LayerPlan plan = plan_layer(options.request);
  fmt::print("{}", plan_table(options, plan));
  std::fflush(stdout);
  if (!options.json.empty()) write_text_file(options.json, plan_json(options, plan));
  runtime::check_memory(plan.memory, options.request.memory_limit, plan.memory_rank);
  return 0;
}

}  // namespace ringmark::cluster
