// What every report says of the layer it is about.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/problem.h"

namespace ringmark::cluster {

// heads, kv_heads, head_dim, dtype, scale, chunk_size, window, topk, sinks, scorer, window_edge, logit_cap, alibi,
// sink_logits, in this order (docs/report.md).
void add_layer_fields(nlohmann::ordered_json& json, const AttentionProblem& problem, const AttentionPolicy& policy);

// What makes its logits other than scaled products, in one line; empty for nothing.
std::string logits_text(const AttentionProblem& problem);

}  // namespace ringmark::cluster
