// Gradients of keys and values of a stretch of chunks on their way home. A rank keeps one record for every block of its
// own and for every block of others that its rows read; then each record goes to the owner of its block, one message a
// pair of ranks, and the owner adds what came in the order of the ranks, its own among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "core/ids.h"
#include "kernels/gradient_table.h"
#include "partition/layout.h"
#include "runtime/fetch_plan.h"
#include "runtime/meeting.h"

namespace ringmark::runtime {

class GradientExchange {
 public:
  // reads: [chunks of the stretch, kv heads] whether rows of this rank read the block. Lists a record of zeros for each
  // of these and of the own blocks in `table`, which outlives the exchange.
  GradientExchange(const partition::Layout& layout, RankId rank, Range<ChunkId> stretch, std::int64_t kv_heads,
                   std::span<const char> reads, kernels::GradientTable& table);
  // The records leave the table.
  ~GradientExchange();
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  // Collective: afterwards the records of own blocks hold the sums of all ranks. Returns the bytes received.
  std::int64_t send_home(comm::Communicator& communicator, const Meeting& meeting);

  // This rank's chunks of the stretch, ascending.
  std::span<const ChunkId> own_chunks() const { return chunks_of(rank_); }

 private:
  std::span<const ChunkId> chunks_of(RankId rank) const;
  std::vector<std::vector<std::byte>> exchange_marks(comm::Communicator& communicator, const Meeting& meeting) const;
  void add_up(const std::vector<std::vector<std::byte>>& marks, const std::vector<std::vector<float>>& received);

  const partition::Layout& layout_;
  RankId rank_;
  Range<ChunkId> stretch_;
  std::int64_t kv_heads_;
  kernels::GradientTable& table_;
  std::vector<std::vector<std::byte>> marks_;  // by owner: [its chunks, kv heads] 1 where there is a record here
  std::vector<std::vector<float>> records_;    // by owner, in that order
};

}  // namespace ringmark::runtime
