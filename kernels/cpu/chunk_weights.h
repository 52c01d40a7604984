// What share of a row's result each of its choices gets: the outer softmax over the landmark scores of the chosen
// chunks and the lse of the window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/attend_chunks.h"
#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/chunk_union.h"
#include "kernels/head_group.h"

namespace ringmark::kernels::cpu {

class ChunkWeights {
 public:
  // cached: null, or the rows whose landmarks stand in a cache. most_heads: heads of a group, at most.
  ChunkWeights(const AttentionProblem& problem, const LandmarkRecords& landmarks, const CachedRows* cached,
               std::int64_t most_rows, std::int64_t most_heads, std::int64_t topk);

  // Weighs all choices of the rows' query heads of a group, who agree on them. The lse of a row that chose something
  // becomes that of the mix; -inf, and weights of 0, when nothing of it can be seen.
  void weigh(const TileKernels& kernels, const RowsView& retrieval_queries, RowRange rows, const HeadGroup& group,
             const ChunkUnion& chosen, TensorView<float, 2> lse);

  // `head` counts inside the group, `row` inside the tile.
  float window(std::int64_t row, std::int64_t head) const { return *slots(row, head); }
  float chunk(const ChunkUnion::Member& member, std::int64_t head) const {
    return slots(member.row, head)[1 + member.slot];
  }

 private:
  struct HeadRows;

  const float* slots(std::int64_t row, std::int64_t head) const {
    return weights_.data() + (row * most_heads_ + head) * stride_;
  }
  float* slots(std::int64_t row, std::int64_t head) { return weights_.data() + (row * most_heads_ + head) * stride_; }
  void score_far(const TileKernels& kernels, const RowsView& queries, const HeadRows& head, const ChunkUnion& chosen);
  const float* key_of(ChunkId chunk, const HeadRows& head);
  bool scores(const HeadRows& head, const ChunkUnion::Member& member, ChunkId chunk) const;
  bool scores_any(const HeadRows& head, const ChunkUnion& chosen, std::int64_t i) const;
  void score(const TileKernels& kernels, const HeadRows& head, const ChunkUnion& chosen);
  void score_sums(const TileKernels& kernels, const HeadRows& head, const ChunkUnion& chosen);
  void flush(const TileKernels& kernels, const HeadRows& head, const ChunkUnion& chosen);
  // The logits of the oracle, of so many vectors.
  void cap(const TileKernels& kernels, std::int64_t products);
  void put(const ChunkUnion& chosen, std::int64_t i, const HeadRows& head, const float* columns);

  const LandmarkRecords& landmarks_;
  const CachedRows* cached_;
  std::int64_t heads_;
  std::int64_t most_heads_;
  std::int64_t head_dim_;
  float scale_;
  std::int64_t stride_;
  AlignedFloats weights_;  // [rows][most_heads][stride]: score, then weight, of the window and of every choice
  AlignedFloats widened_;
  AlignedFloats panel_;        // retrieval queries of one head, transposed: lanes are rows
  AlignedFloats products_;     // [landmark vectors][32 rows]
  AlignedFloats far_queries_;  // of one head, as they meet far landmarks; only with cached rows, as is the next
  AlignedFloats far_keys_;     // [batch] landmarks turned back
  std::vector<const float*> vectors_;
  std::vector<std::int64_t> batch_;  // chunks whose vectors those are
};

}  // namespace ringmark::kernels::cpu
