#include "cluster/prefill/layer_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace ringmark::cluster {

void add_layer_fields(nlohmann::ordered_json& json, const AttentionProblem& problem, const AttentionPolicy& policy) {
  json["heads"] = problem.heads;
  json["kv_heads"] = problem.kv_heads;
  json["head_dim"] = problem.head_dim;
  json["dtype"] = name_of(problem.dtype);
  json["scale"] = problem.scale;
  json["chunk_size"] = problem.chunk_size;
  json["window"] = policy.window;
  json["topk"] = policy.topk;
  json["sinks"] = policy.sinks;
  json["scorer"] = name_of(policy.scorer);
  json["window_edge"] = name_of(policy.edge);
  if (policy.edge == WindowEdge::kSegment) json["segment"] = policy.segment;
  json["logit_cap"] = problem.logit_cap;
  json["alibi"] = problem.alibi;
  json["sink_logits"] = !problem.sink_logits.empty();
}

std::string logits_text(const AttentionProblem& problem) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (problem.logit_cap > 0.0f) add(fmt::format("capped at {:g}", problem.logit_cap));
  if (problem.alibi) add("ALiBi");
  if (!problem.sink_logits.empty()) {
    const auto [low, high] = std::minmax_element(problem.sink_logits.begin(), problem.sink_logits.end());
    add(*low == *high ? fmt::format("sink logits {:g}", *low) : fmt::format("sink logits {:g} to {:g}", *low, *high));
  }
  return text;
}

}  // namespace ringmark::cluster
