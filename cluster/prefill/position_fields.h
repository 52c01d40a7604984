// What the report of a prefill says of positions that it applied itself.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/problem.h"
#include "kernels/positions/encoding.h"

namespace ringmark::cluster {

struct PositionReport {
  kernels::PositionEncoding encoding;
  bool own_positions = false;  // the input has the tensor `positions`
  bool cached_sinks = false;   // sinks below the window are at their place in the cache
};

// One line; `problem` has the scale with YaRN's gain.
std::string positions_text(const PositionReport& report, const AttentionProblem& problem);
// The object `positions` (docs/report.md).
nlohmann::ordered_json positions_json(const PositionReport& report, const AttentionProblem& problem);

}  // namespace ringmark::cluster
