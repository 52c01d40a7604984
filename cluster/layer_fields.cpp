#include "cluster/layer_fields.h"

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
}

}  // namespace ringmark::cluster
