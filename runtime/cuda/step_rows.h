// The rows of a decode step on a GPU: first those whose home is this rank, then the others, each in the order of the
// step. One copy brings all of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/cuda/buffer.h"
#include "core/cuda/pinned.h"
#include "kernels/cuda/score.h"
#include "runtime/kept_sequences.h"
#include "runtime/new_tokens.h"

namespace ringmark::runtime::cuda {

class StepRows {
 public:
  // A chunk of this rank whose last token is among the rows.
  struct Closing {
    ChunkId chunk;
    std::int64_t row;  // on the device
  };

  // `sequences` outlives the object.
  StepRows(const KeptSequences& sequences, RankId rank, std::int64_t kv_heads);

  // tokens: what the rows become. Waits for nothing; the last step's use of the arrays has ended on `stream`, and its
  // host side too.
  void upload(const NewTokens& rows, std::span<const TokenId> tokens, cudaStream_t stream);

  std::int64_t count() const { return static_cast<std::int64_t>(order_.size()); }
  std::int64_t own() const { return own_; }
  // Row of the step by row on the device.
  const std::vector<std::int64_t>& order() const { return order_; }
  const std::vector<Closing>& closings() const { return closings_; }
  // Chunks that one of the own rows reads besides what it chose, at most.
  std::int32_t most_window_chunks() const { return most_window_chunks_; }
  // Slots of own chunks that one of all rows may choose.
  Range<std::int32_t> eligible_slots() const { return eligible_slots_; }

  // On the device.
  const kernels::cuda::RowGeometry* geometry() const { return geometry_; }
  // The same rows where chunks are counted by their slots on this rank.
  const kernels::cuda::RowGeometry* slot_geometry() const { return slot_geometry_; }
  const kernels::cuda::ScoringItem* items() const { return items_; }  // (row, kv head) pairs of all rows
  const std::byte* queries() const { return queries_; }
  const std::byte* retrieval_queries() const { return retrieval_queries_; }
  const std::byte* keys() const { return keys_; }  // of the own rows, values too
  const std::byte* values() const { return values_; }

 private:
  void set_geometry(std::span<const TokenId> tokens);

  const KeptSequences& sequences_;
  RankId rank_;
  std::int64_t kv_heads_;
  std::vector<std::int64_t> order_;
  std::int64_t own_ = 0;
  std::vector<Closing> closings_;
  std::int32_t most_window_chunks_ = 0;
  Range<std::int32_t> eligible_slots_;
  std::vector<kernels::cuda::RowGeometry> rows_, slot_rows_;
  std::vector<kernels::cuda::ScoringItem> pairs_;
  ringmark::cuda::PinnedBytes staging_;
  ringmark::cuda::Buffer<std::byte> device_;
  const kernels::cuda::RowGeometry* geometry_ = nullptr;
  const kernels::cuda::RowGeometry* slot_geometry_ = nullptr;
  const kernels::cuda::ScoringItem* items_ = nullptr;
  const std::byte* queries_ = nullptr;
  const std::byte* retrieval_queries_ = nullptr;
  const std::byte* keys_ = nullptr;
  const std::byte* values_ = nullptr;
};

}  // namespace ringmark::runtime::cuda
