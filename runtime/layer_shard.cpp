#include "runtime/layer_shard.h"

namespace ringmark::runtime {

LayerShard::LayerShard(const AttentionProblem& problem, std::int64_t rows, bool has_retrieval_queries)
    : rows_(rows),
      heads_(problem.heads),
      kv_heads_(problem.kv_heads),
      head_dim_(problem.head_dim),
      dtype_(problem.dtype) {
  const auto head_bytes = static_cast<std::size_t>(rows * problem.head_dim * size_of(problem.dtype));
  q_.resize(head_bytes * static_cast<std::size_t>(heads_));
  if (has_retrieval_queries) retrieval_q_.resize(q_.size());
  k_.resize(head_bytes * static_cast<std::size_t>(kv_heads_));
  v_.resize(k_.size());
}

void LayerShard::release_keys_and_values() {
  std::vector<std::byte>().swap(k_);
  std::vector<std::byte>().swap(v_);
}

}  // namespace ringmark::runtime
