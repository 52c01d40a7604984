// What `ringmark plan` was asked: names as in prefill where they mean the same.
#pragma once

#include <string>
#include <vector>

#include "cluster/options/option_layers.h"
#include "cluster/planning/layer_plan.h"

namespace ringmark::cluster {

struct PlanOptions {
  PlanRequest request;
  std::string policy_name;
  std::string json;  // empty: none
};

// `arguments` stand behind the word plan. Throws Error(kBadInput) in one line naming option, value and limit.
PlanOptions parse_plan_options(const std::vector<std::string>& arguments, const Environment& environment);

boost::program_options::options_description plan_descriptions();
std::string plan_help();

}  // namespace ringmark::cluster
