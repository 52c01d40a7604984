// What `ringmark simulate` prints, and the same as JSON (docs/simulation.md).
#pragma once

#include <string>
#include <vector>

#include "cluster/simulation/simulate_options.h"
#include "cluster/simulation/study.h"

namespace ringmark::cluster {

void print_setting(const SimulateOptions& options);
// Points of one arm and series, rated.
void print_series(const SimulateOptions& options, const std::vector<Point>& points);
std::string simulation_json(const SimulateOptions& options, const std::vector<Point>& points);

}  // namespace ringmark::cluster
