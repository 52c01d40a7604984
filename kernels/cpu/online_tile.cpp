#include "kernels/cpu/online_tile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/cpu/tile_queries.h"
#include "kernels/positions/alibi.h"

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

OnlineTile::OnlineTile(const TileKernels& kernels, const AttentionProblem& problem, std::int64_t most_rows,
                       std::int64_t key_step)
    : kernels_(kernels),
      head_dim_(problem.head_dim),
      scale_(problem.scale),
      logit_cap_(problem.logit_cap),
      slopes_of_heads_(problem.alibi ? alibi_slopes(problem.heads) : std::vector<float>()),
      out_stride_(round_up(problem.head_dim, kPanelWidth)),
      panels_(BlockShape::of(problem)) {
  for (float& slope : slopes_of_heads_) slope *= static_cast<float>(key_step);
  const auto rows = static_cast<std::size_t>(most_rows);
  queries_.resize(rows * static_cast<std::size_t>(head_dim_));
  out_.resize(rows * static_cast<std::size_t>(out_stride_));
  if (problem.alibi) {
    slopes_.resize(rows);
    distances_.resize(rows);
  }
  top_.resize(rows);
  sum_.resize(rows);
  active_.resize(rows);
  first_.resize(rows);
  end_.resize(rows);
}

void OnlineTile::open(const RowsView& queries, RowRange tokens, const HeadGroup& group, std::int64_t first_head) {
  tokens_ = tokens.size();
  group_ = group;
  for (std::int64_t n = 0; n < tokens_; ++n) {
    widen_queries(kernels_, queries, tokens.begin + n, group, scale_, queries_.data() + n * group.heads * head_dim_);
    if (slopes_.empty()) continue;
    std::copy_n(slopes_of_heads_.begin() + first_head + group.first_head, group.heads,
                slopes_.begin() + n * group.heads);
  }
  std::fill_n(out_.begin(), rows() * out_stride_, 0.0f);
  std::fill_n(top_.begin(), rows(), kEmptyLse);
  std::fill_n(sum_.begin(), rows(), 0.0f);
}

void OnlineTile::close(std::int64_t row, float* out, float& lse) const {
  const float* gathered = out_.data() + row * out_stride_;
  const float sum = sum_[static_cast<std::size_t>(row)];
  for (std::int64_t k = 0; k < head_dim_; ++k) out[k] = sum == 0.0f ? 0.0f : gathered[k] / sum;
  lse = sum == 0.0f ? kEmptyLse : static_cast<float>(top_[static_cast<std::size_t>(row)] + std::log(double{sum}));
}

void OnlineTile::open_for_sinks(const RowsView& queries, RowRange tokens) {
  sink_queries_.resize(queries_.size());
  for (std::int64_t n = 0; n < tokens_; ++n) {
    widen_queries(kernels_, queries, tokens.begin + n, group_, scale_,
                  sink_queries_.data() + n * group_.heads * head_dim_);
  }
}

void OnlineTile::resume(std::int64_t row, const float* out, float lse) {
  if (lse == kEmptyLse) return;
  std::copy_n(out, head_dim_, this->out(row));
  top(row) = lse;
  sum(row) = 1.0f;
}

void OnlineTile::see(std::int64_t token, const KeyRun& run) {
  if (run.first >= run.end) return;
  if (!distances_.empty()) {
    std::fill_n(distances_.begin() + static_cast<std::ptrdiff_t>(seeing_), group_.heads, run.distance);
  }
  for (std::int64_t head = 0; head < group_.heads; ++head, ++seeing_) {
    active_[seeing_] = static_cast<std::int32_t>(token * group_.heads + head);
    first_[seeing_] = static_cast<std::int32_t>(run.first);
    end_[seeing_] = static_cast<std::int32_t>(run.end);
  }
}

void OnlineTile::attend_seeing(const BlockTable& blocks, ChunkId chunk, QuerySet queries) {
  if (seeing_ == 0) return;
  // Panels begin at the first slot whoever sees it: the order in which a row's weights are added hangs on it.
  const std::int64_t most = *std::max_element(end_.begin(), end_.begin() + static_cast<std::ptrdiff_t>(seeing_));
  const PackedChunk packed = panels_.pack(kernels_, blocks, chunk, group_.kv_head, 0, most);
  const RowSights sights{active_.data(), first_.data(), end_.data(), distances_.empty() ? nullptr : distances_.data(),
                         static_cast<std::int64_t>(seeing_)};
  const float* rows = queries == QuerySet::kOwn ? queries_.data() : sink_queries_.data();
  kernels_.attend_online(packed, sights, {rows, out_.data(), out_stride_, top_.data(), sum_.data()},
                         {logit_cap_, slopes_.empty() ? nullptr : slopes_.data()}, panels_.scores());
}

}  // namespace ringmark::kernels::cpu
