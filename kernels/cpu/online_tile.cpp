#include "kernels/cpu/online_tile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/cpu/tile_queries.h"

namespace ringmark::kernels::cpu {
namespace {

constexpr std::int64_t kTileRows = 256;  // a packed chunk is used that often
constexpr std::int64_t kTasksPerThread = 4;
constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();

}  // namespace

std::int64_t tile_tokens(std::int64_t pairs, std::int64_t group, int threads) {
  const std::int64_t most = std::max<std::int64_t>(1, kTileRows / group);
  return std::clamp<std::int64_t>(pairs / (kTasksPerThread * threads), 1, most);
}

OnlineTile::OnlineTile(const TileKernels& kernels, const BlockShape& shape, std::int64_t most_rows)
    : kernels_(kernels), head_dim_(shape.head_dim), out_stride_(round_up(shape.head_dim, kPanelWidth)), panels_(shape) {
  const auto rows = static_cast<std::size_t>(most_rows);
  queries_.resize(rows * static_cast<std::size_t>(head_dim_));
  out_.resize(rows * static_cast<std::size_t>(out_stride_));
  top_.resize(rows);
  sum_.resize(rows);
  active_.resize(rows);
  visible_.resize(rows);
}

void OnlineTile::open(const RowsView& queries, RowRange tokens, const HeadGroup& group, float scale) {
  tokens_ = tokens.size();
  group_ = group;
  for (std::int64_t n = 0; n < tokens_; ++n) {
    widen_queries(kernels_, queries, tokens.begin + n, group, scale, queries_.data() + n * group.heads * head_dim_);
  }
  std::fill_n(out_.begin(), rows() * out_stride_, 0.0f);
  std::fill_n(top_.begin(), rows(), kEmptyLse);
  std::fill_n(sum_.begin(), rows(), 0.0f);
}

void OnlineTile::resume(std::int64_t row, const float* out, float lse) {
  if (lse == kEmptyLse) return;
  std::copy_n(out, head_dim_, this->out(row));
  top(row) = lse;
  sum(row) = 1.0f;
}

void OnlineTile::close(std::int64_t row, float* out, float& lse) const {
  const float* gathered = out_.data() + row * out_stride_;
  const float sum = sum_[static_cast<std::size_t>(row)];
  for (std::int64_t k = 0; k < head_dim_; ++k) out[k] = sum == 0.0f ? 0.0f : gathered[k] / sum;
  lse = sum == 0.0f ? kEmptyLse : static_cast<float>(top_[static_cast<std::size_t>(row)] + std::log(double{sum}));
}

void OnlineTile::see(std::int64_t token, std::int64_t visible) {
  if (visible == 0) return;
  for (std::int64_t head = 0; head < group_.heads; ++head, ++seeing_) {
    active_[seeing_] = static_cast<std::int32_t>(token * group_.heads + head);
    visible_[seeing_] = static_cast<std::int32_t>(visible);
  }
}

void OnlineTile::attend_seeing(const BlockTable& blocks, ChunkId chunk, std::int64_t first) {
  if (seeing_ == 0) return;
  const std::int64_t most =
      *std::max_element(visible_.begin(), visible_.begin() + static_cast<std::ptrdiff_t>(seeing_));
  const PackedChunk packed = panels_.pack(kernels_, blocks, chunk, group_.kv_head, first, most);
  kernels_.attend_online(packed, active_.data(), visible_.data(), static_cast<std::int64_t>(seeing_),
                         {queries_.data(), out_.data(), out_stride_, top_.data(), sum_.data()}, panels_.scores());
}

}  // namespace ringmark::kernels::cpu
