// One tile of rows in an online softmax over packed chunks: the queries, what they have gathered so far, and which of
// them see the chunk at hand. A row here is one (token, query head); heads of a token stand side by side. One per
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"
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

class OnlineTile {
 public:
  OnlineTile(const TileKernels& kernels, const BlockShape& shape, std::int64_t most_rows);

  // These tokens' queries of one group, scaled. Nothing is gathered yet.
  void open(const RowsView& queries, RowRange tokens, const HeadGroup& group, float scale);

  // The row goes on from a finished softmax: out [head_dim] and its lse, with which out may be anything when it is
  // -inf.
  void resume(std::int64_t row, const float* out, float lse);

  // Token n of the tile sees visible_to(n) keys of the chunk, those from slot `first` on; asked in ascending order.
  template <class VisibleTo>
  void attend(const BlockTable& blocks, ChunkId chunk, VisibleTo&& visible_to, std::int64_t first = 0) {
    seeing_ = 0;
    for (std::int64_t n = 0; n < tokens_; ++n) see(n, visible_to(n));
    attend_seeing(blocks, chunk, first);
  }

  // What the row has attended to: out [head_dim] and its lse. Nothing: out = 0, lse = -inf.
  void close(std::int64_t row, float* out, float& lse) const;

  std::int64_t rows() const { return tokens_ * group_.heads; }
  // What a row has gathered: sum over its keys of e^(score - top) v, unnormalised, and of e^(score - top).
  float* out(std::int64_t row) { return out_.data() + row * out_stride_; }
  float& top(std::int64_t row) { return top_[static_cast<std::size_t>(row)]; }
  float& sum(std::int64_t row) { return sum_[static_cast<std::size_t>(row)]; }

 private:
  void see(std::int64_t token, std::int64_t visible);
  void attend_seeing(const BlockTable& blocks, ChunkId chunk, std::int64_t first);

  const TileKernels& kernels_;
  std::int64_t head_dim_;
  std::int64_t out_stride_;
  std::int64_t tokens_ = 0;
  HeadGroup group_;
  ChunkPanels panels_;
  AlignedFloats queries_;
  AlignedFloats out_;
  std::vector<float> top_;
  std::vector<float> sum_;
  std::size_t seeing_ = 0;             // rows that see some key of the chunk at hand
  std::vector<std::int32_t> active_;   // which
  std::vector<std::int32_t> visible_;  // how many keys
};

}  // namespace ringmark::kernels::cpu
