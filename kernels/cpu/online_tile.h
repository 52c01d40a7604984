// One tile of rows in an online softmax over packed chunks: the queries, what they have gathered so far, and which of
// them see the chunk at hand. A row here is one (token, query head); heads of a token stand side by side. One per
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/chunk_panels.h"
#include "kernels/head_group.h"

namespace ringmark::kernels::cpu {

// Tokens of a tile whose groups have up to `group` heads: so many that a packed chunk is used often, so few that every
// thread has some tiles. `pairs` are the (token, kv head) pairs to do.
std::int64_t tile_tokens(std::int64_t pairs, std::int64_t group, int threads);

// The keys [first, end) of a chunk that a token sees; distance: i - j of the token and the chunk's first slot.
struct KeyRun {
  std::int64_t first = 0;
  std::int64_t end = 0;
  std::int64_t distance = 0;
};

// Which of its queries a row attends with.
enum class QuerySet { kOwn, kForSinks };

class OnlineTile {
 public:
  // problem: of the layer; its scale, cap and slopes make the logits. Blocks that it attends to may be of another
  // dtype, and are no longer than a chunk. key_step: tokens from one key of a chunk to the next, in which the distances
  // of KeyRun are then counted.
  OnlineTile(const TileKernels& kernels, const AttentionProblem& problem, std::int64_t most_rows,
             std::int64_t key_step = 1);

  // These tokens' queries of one group. Nothing is gathered yet. first_head: the number, in the layer, of head 0 of the
  // queries, which may be those of some heads only.
  void open(const RowsView& queries, RowRange tokens, const HeadGroup& group, std::int64_t first_head = 0);
  // After open(): the same rows for QuerySet::kForSinks.
  void open_for_sinks(const RowsView& queries, RowRange tokens);

  // The row goes on from a finished softmax: out [head_dim] and its lse, with which out may be anything when it is
  // -inf.
  void resume(std::int64_t row, const float* out, float lse);

  // Token n of the tile sees run_of(n) of the chunk; asked in ascending order.
  template <class RunOf>
  void attend(const BlockTable& blocks, ChunkId chunk, RunOf&& run_of, QuerySet queries = QuerySet::kOwn) {
    seeing_ = 0;
    for (std::int64_t n = 0; n < tokens_; ++n) see(n, run_of(n));
    attend_seeing(blocks, chunk, queries);
  }

  // What the row has attended to: out [head_dim] and its lse. Nothing: out = 0, lse = -inf.
  void close(std::int64_t row, float* out, float& lse) const;

  // The scaled query of a row.
  const float* query(std::int64_t row) const { return queries_.data() + row * head_dim_; }

  std::int64_t rows() const { return tokens_ * group_.heads; }
  // What a row has gathered: sum over its keys of e^(score - top) v, unnormalised, and of e^(score - top).
  float* out(std::int64_t row) { return out_.data() + row * out_stride_; }
  float& top(std::int64_t row) { return top_[static_cast<std::size_t>(row)]; }
  float& sum(std::int64_t row) { return sum_[static_cast<std::size_t>(row)]; }

 private:
  void see(std::int64_t token, const KeyRun& run);
  void attend_seeing(const BlockTable& blocks, ChunkId chunk, QuerySet queries);

  const TileKernels& kernels_;
  std::int64_t head_dim_;
  float scale_;
  float logit_cap_;
  std::vector<float> slopes_of_heads_;  // of the layer; empty without ALiBi
  std::int64_t out_stride_;
  std::int64_t tokens_ = 0;
  HeadGroup group_;
  ChunkPanels panels_;
  AlignedFloats queries_;
  AlignedFloats sink_queries_;  // empty until they are asked for
  std::vector<float> slopes_;   // of the rows; empty without ALiBi
  AlignedFloats out_;
  std::vector<float> top_;
  std::vector<float> sum_;
  std::size_t seeing_ = 0;            // rows that see some key of the chunk at hand
  std::vector<std::int32_t> active_;  // which
  std::vector<std::int32_t> first_;   // of their keys
  std::vector<std::int32_t> end_;
  std::vector<std::int64_t> distances_;  // empty without ALiBi
};

}  // namespace ringmark::kernels::cpu
