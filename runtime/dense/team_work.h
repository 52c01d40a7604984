// What a strategy works on: the queries, keys and values that a rank has of the heads that its team shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "kernels/attend_causal.h"
#include "kernels/block_table.h"
#include "runtime/dense/team.h"
#include "runtime/meeting.h"
#include "runtime/progress_sink.h"
#include "runtime/stage_clock.h"

namespace ringmark::runtime::dense {

// Received by this rank.
struct ReceivedBytes {
  std::int64_t keys = 0;  // and values
  std::int64_t queries = 0;
  std::int64_t partials = 0;  // out and lse
};

struct TeamWork {
  comm::Communicator& communicator;
  const Team& team;
  const kernels::CausalQueries& queries;  // rows of this rank, chunk by chunk
  std::int64_t kv_heads;                  // of the team
  kernels::BlockTable& blocks;            // own chunks are listed; a strategy lists what it receives
  kernels::OpenSoftmax softmax;           // of the rows, started; a strategy closes it
  std::int64_t fetch_budget;
  int threads;
  const Meeting& meeting;
  ReceivedBytes& received;
  StageClock& clock;
  ProgressSink& progress;

  std::int64_t rows() const { return static_cast<std::int64_t>(queries.tokens.size()); }
  // A chunk's blocks of all kv heads of the team: what travels together.
  std::int64_t chunk_bytes() const { return kv_heads * blocks.shape().bytes(); }
};

// One message to a place and one from a place, or none: an all-to-all of which the team's other ranks are no part.
class Exchange {
 public:
  Exchange(const TeamWork& work, std::string_view stage)
      : work_(work), stage_(stage), send_(static_cast<std::size_t>(work.communicator.size())), receive_(send_.size()) {}

  void send(int place, comm::ConstBytes message) { send_[rank_at(place)] = message; }
  void receive(int place, comm::Bytes message) { receive_[rank_at(place)] = message; }
  // Collective over all ranks, whatever they send.
  void start() { started_ = work_.communicator.start_all_to_all(stage_, send_, receive_); }
  void wait() {
    const auto span = work_.clock.time("fetch");
    started_->wait(work_.meeting.allowance());
    started_.reset();
  }

 private:
  std::size_t rank_at(int place) const {
    return static_cast<std::size_t>(work_.team.ranks[static_cast<std::size_t>(place)]);
  }

  const TeamWork& work_;
  std::string_view stage_;
  std::vector<comm::ConstBytes> send_;
  std::vector<comm::Bytes> receive_;
  std::unique_ptr<comm::StartedExchange> started_;
};

// Copies the blocks of these chunks behind each other: [chunks][kv heads].
void pack_chunks(const TeamWork& work, std::span<const ChunkId> chunks, std::byte* out);
// Lists packed chunks in the table.
void list_chunks(const TeamWork& work, std::span<const ChunkId> chunks, const std::byte* packed);

// All rows attend to these chunks, ascending, on the clock.
void attend(const TeamWork& work, std::span<const ChunkId> chunks);

// The strategies. Collective over all ranks; each leaves the softmax closed. Those that know one team only, pass-q and
// all-gather, take all ranks in order as the team.
void attend_by_ring(const TeamWork& work);
void attend_by_visits(const TeamWork& work);
void attend_by_gather(const TeamWork& work);

}  // namespace ringmark::runtime::dense
