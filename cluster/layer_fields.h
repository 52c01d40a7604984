// What every report says of the layer it is about.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "core/problem.h"

namespace ringmark::cluster {

// heads, kv_heads, head_dim, dtype, scale, chunk_size, window, topk, sinks, scorer, in this order (docs/report.md).
void add_layer_fields(nlohmann::ordered_json& json, const AttentionProblem& problem, const AttentionPolicy& policy);

}  // namespace ringmark::cluster
