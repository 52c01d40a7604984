#include "runtime/cuda/step_rows.h"

#include <algorithm>
#include <cstring>

#include "runtime/cuda/workspace.h"

namespace ringmark::runtime::cuda {
namespace {

using kernels::cuda::RowGeometry;
using kernels::cuda::ScoringItem;

constexpr std::int64_t kAlignment = 256;

// Arrays behind each other in a staging buffer, and where they will be on the device.
class Packer {
 public:
  explicit Packer(std::byte* host) : host_(host) {}
  std::int64_t bytes() const { return at_; }

  template <class T>
  std::int64_t put(const std::vector<T>& values) {
    const std::int64_t begin = begin_array();
    put_bytes(values.data(), static_cast<std::int64_t>(values.size() * sizeof(T)));
    return begin;
  }
  std::int64_t put(const RowsView& rows, std::span<const std::int64_t> order) {
    const std::int64_t begin = begin_array();
    for (const std::int64_t row : order) put_bytes(rows.row(row, 0), rows.heads * rows.head_dim * size_of(rows.dtype));
    return begin;
  }

 private:
  std::int64_t begin_array() { return at_ = (at_ + kAlignment - 1) / kAlignment * kAlignment; }
  void put_bytes(const void* from, std::int64_t bytes) {
    if (bytes > 0) std::memcpy(host_ + at_, from, static_cast<std::size_t>(bytes));
    at_ += bytes;
  }

  std::byte* host_;
  std::int64_t at_ = 0;
};

}  // namespace

StepRows::StepRows(const KeptSequences& sequences, RankId rank, std::int64_t kv_heads)
    : sequences_(sequences), rank_(rank), kv_heads_(kv_heads) {}

void StepRows::set_geometry(std::span<const TokenId> tokens) {
  const partition::Layout& layout = sequences_.layout();
  std::vector<TokenId> ordered;
  for (const std::int64_t row : order_) ordered.push_back(tokens[static_cast<std::size_t>(row)]);
  rows_ = kernels::cuda::row_geometry(sequences_.grid(), ordered);
  slot_rows_ = rows_;
  pairs_.clear();
  closings_.clear();
  most_window_chunks_ = 0;
  const std::vector<ChunkId>& own_chunks = layout.chunks_of(rank_);
  const auto slots_below = [&](std::int32_t chunk) {
    const auto end = std::lower_bound(own_chunks.begin(), own_chunks.end(), ChunkId(chunk));
    return static_cast<std::int32_t>(end - own_chunks.begin());
  };
  Range<std::int32_t> slots{static_cast<std::int32_t>(own_chunks.size()), 0};
  for (std::size_t n = 0; n < rows_.size(); ++n) {
    RowGeometry& row = slot_rows_[n];
    const auto at = static_cast<std::int64_t>(n);
    if (at < own_) {
      most_window_chunks_ =
          std::max(most_window_chunks_, row.sink_last - row.sink_first + row.chunk - row.window_first + 1);
      if (sequences_.closes_chunk(ordered[n])) closings_.push_back({ChunkId(row.chunk), at});
    }
    row.eligible_first = slots_below(row.eligible_first);
    row.eligible_end = slots_below(row.eligible_end);
    if (row.eligible_first < row.eligible_end) {
      slots = {std::min(slots.begin, row.eligible_first), std::max(slots.end, row.eligible_end)};
    }
    for (std::int32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) pairs_.push_back({at, kv_head, 0});
  }
  eligible_slots_ = slots.empty() ? Range<std::int32_t>{} : slots;
}

void StepRows::upload(const NewTokens& rows, std::span<const TokenId> tokens, cudaStream_t stream) {
  order_.resize(static_cast<std::size_t>(rows.rows()));
  for (std::size_t row = 0; row < order_.size(); ++row) order_[row] = static_cast<std::int64_t>(row);
  const partition::Layout& layout = sequences_.layout();
  const auto others = std::stable_partition(order_.begin(), order_.end(), [&](std::int64_t row) {
    return layout.owner(sequences_.grid().chunk_of(tokens[static_cast<std::size_t>(row)])) == rank_;
  });
  own_ = others - order_.begin();
  set_geometry(tokens);

  const std::span<const std::int64_t> all(order_);
  const auto own = all.first(static_cast<std::size_t>(own_));
  const bool calibrated = rows.retrieval_queries.data != rows.queries.data;
  const std::int64_t most = rows.queries.bytes() + rows.retrieval_queries.bytes() + rows.keys.bytes() +
                            rows.values.bytes() + rows.rows() * 2 * static_cast<std::int64_t>(sizeof(RowGeometry)) +
                            static_cast<std::int64_t>(pairs_.size() * sizeof(ScoringItem)) + 7 * kAlignment;
  Packer packer(staging_.reserve(most));
  const std::byte* device = Workspace::reserve(device_, most);
  const auto place = [&]<class T>(const T*& pointer, std::int64_t at) {
    pointer = reinterpret_cast<const T*>(device + at);
  };
  place(geometry_, packer.put(rows_));
  place(slot_geometry_, packer.put(slot_rows_));
  place(items_, packer.put(pairs_));
  place(queries_, packer.put(rows.queries, all));
  retrieval_queries_ = queries_;
  if (calibrated) place(retrieval_queries_, packer.put(rows.retrieval_queries, all));
  place(keys_, packer.put(rows.keys, own));
  place(values_, packer.put(rows.values, own));
  device_.upload(staging_.reserve(most), packer.bytes(), stream);
}

}  // namespace ringmark::runtime::cuda
