// The rows of one layer that a rank holds: q, optional retrieval and sink q, k, v, in the order of the layout, and
// landmark queries that are no rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "core/tensor.h"

namespace ringmark::runtime {

class LayerShard {
 public:
  LayerShard(const AttentionProblem& problem, std::int64_t rows, bool has_retrieval_queries);

  std::int64_t rows() const { return rows_; }
  RowsView queries() const { return view(q_, heads_); }
  // The retrieval queries q~; the attention queries where the model has no calibration.
  RowsView retrieval_queries() const { return retrieval_q_.empty() ? queries() : view(retrieval_q_, heads_); }
  // [chunks of the rank, H, d] landmark queries of their own, in the order of the layout; no rows where those are the
  // retrieval queries at the chunks' last slots (runtime/landmark_queries.h).
  RowsView landmark_queries() const {
    const std::int64_t chunk_bytes = heads_ * head_dim_ * size_of(dtype_);
    return {landmark_q_.data(), dtype_, std::ssize(landmark_q_) / chunk_bytes, heads_, head_dim_};
  }
  // What attends to sinks below the window instead of queries(), where there is any.
  bool has_sink_queries() const { return has_sink_queries_; }
  RowsView sink_queries() const { return view(sink_q_, heads_); }
  RowsView keys() const { return view(k_, kv_heads_); }
  RowsView values() const { return view(v_, kv_heads_); }

  // Storage to fill, [rows, heads, head_dim] each; landmark_q, which is empty at first, by chunks instead of rows.
  std::vector<std::byte>& q() { return q_; }
  std::vector<std::byte>& retrieval_q() { return retrieval_q_; }
  std::vector<std::byte>& landmark_q() { return landmark_q_; }
  // From the first call on there are sink queries.
  std::vector<std::byte>& sink_q() {
    has_sink_queries_ = true;
    sink_q_.resize(q_.size());
    return sink_q_;
  }
  std::vector<std::byte>& k() { return k_; }
  std::vector<std::byte>& v() { return v_; }
  // K and V are not needed once they stand in the block store.
  void release_keys_and_values();

 private:
  RowsView view(const std::vector<std::byte>& bytes, std::int64_t heads) const {
    return {bytes.data(), dtype_, rows_, heads, head_dim_};
  }

  std::int64_t rows_;
  std::int64_t heads_;
  std::int64_t kv_heads_;
  std::int64_t head_dim_;
  DType dtype_;
  std::vector<std::byte> q_;
  std::vector<std::byte> retrieval_q_;
  std::vector<std::byte> landmark_q_;
  bool has_sink_queries_ = false;
  std::vector<std::byte> sink_q_;
  std::vector<std::byte> k_;
  std::vector<std::byte> v_;
};

}  // namespace ringmark::runtime
