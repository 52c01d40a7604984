// A plan as a table and as JSON (docs/planning.md).
#pragma once

#include <string>

#include "cluster/planning/plan_options.h"

namespace ringmark::cluster {

std::string plan_table(const PlanOptions& options, const LayerPlan& plan);
std::string plan_json(const PlanOptions& options, const LayerPlan& plan);

}  // namespace ringmark::cluster
