// Every rank receives the keys and values that it needs from their owners, piece by piece through the sequence; the
// next piece comes while one is attended to. Chunks are walked in ascending order whatever the ranks and pieces, so the
// bits are those of one rank.
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "comm/current_step.h"
#include "runtime/dense/key_pieces.h"
#include "runtime/dense/team_work.h"

namespace ringmark::runtime::dense {
namespace {

class Gather {
 public:
  explicit Gather(const TeamWork& work)
      : work_(work),
        team_(work.team),
        // Two pieces are held at a time.
        pieces_(cut_pieces(work.queries.grid, work.team, work.fetch_budget / 2 / work.chunk_bytes())) {
    for (int place = 0; place < team_.size(); ++place) {
      if (place == team_.place) continue;
      incoming_.push_back({place, needed_keys(work.queries.grid, team_, team_.place, place)});
      outgoing_.push_back({place, needed_keys(work.queries.grid, team_, place, team_.place)});
    }
  }

  void attend_all() {
    work_.progress.begin("attend", work_.queries.grid.chunk_count());
    start(0);
    for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
      const comm::EnterStep entered("gathered piece", static_cast<std::int64_t>(piece));
      coming_->wait();
      const std::vector<ChunkId> chunks = list(piece);
      if (piece + 1 < pieces_.size()) start(piece + 1);
      attend(work_, chunks);
      work_.progress.advance(pieces_[piece].end.value());
    }
    work_.progress.end();
    kernels::close_softmax(work_.softmax);
  }

 private:
  struct Share {
    int place;
    std::vector<ChunkId> chunks;  // ascending

    std::span<const ChunkId> in(Range<ChunkId> piece) const {
      const auto first = std::lower_bound(chunks.begin(), chunks.end(), piece.begin);
      return {first, std::lower_bound(first, chunks.end(), piece.end)};
    }
  };
  // The messages of one piece, one behind the other.
  struct Buffers {
    std::vector<std::byte> sent;
    std::vector<std::byte> received;
  };

  std::size_t bytes(const Share& share, std::size_t piece) const {
    return share.in(pieces_[piece]).size() * static_cast<std::size_t>(work_.chunk_bytes());
  }
  std::size_t bytes(const std::vector<Share>& shares, std::size_t piece) const {
    std::size_t sum = 0;
    for (const Share& share : shares) sum += bytes(share, piece);
    return sum;
  }

  void start(std::size_t piece) {
    coming_.emplace(work_, "gather of keys");
    Buffers& buffers = buffers_[piece % 2];
    buffers.sent.resize(bytes(outgoing_, piece));
    buffers.received.resize(bytes(incoming_, piece));
    comm::Bytes to_send(buffers.sent);
    for (const Share& share : outgoing_) {
      pack_chunks(work_, share.in(pieces_[piece]), to_send.data());
      coming_->send(share.place, to_send.first(bytes(share, piece)));
      to_send = to_send.subspan(bytes(share, piece));
    }
    comm::Bytes to_receive(buffers.received);
    for (const Share& share : incoming_) {
      coming_->receive(share.place, to_receive.first(bytes(share, piece)));
      to_receive = to_receive.subspan(bytes(share, piece));
    }
    coming_->start();
  }

  // All chunks of the piece that are here now, ascending.
  std::vector<ChunkId> list(std::size_t piece) {
    const Share own{team_.place, team_.own_chunks()};
    const std::span<const ChunkId> mine = own.in(pieces_[piece]);
    std::vector<ChunkId> here(mine.begin(), mine.end());
    const std::byte* packed = buffers_[piece % 2].received.data();
    for (const Share& share : incoming_) {
      const std::span<const ChunkId> chunks = share.in(pieces_[piece]);
      list_chunks(work_, chunks, packed);
      here.insert(here.end(), chunks.begin(), chunks.end());
      packed += bytes(share, piece);
    }
    work_.received.keys += static_cast<std::int64_t>(bytes(incoming_, piece));
    std::sort(here.begin(), here.end());
    return here;
  }

  const TeamWork& work_;
  const Team& team_;
  std::vector<Range<ChunkId>> pieces_;
  std::vector<Share> incoming_;
  std::vector<Share> outgoing_;
  std::array<Buffers, 2> buffers_;
  std::optional<Exchange> coming_;
};

}  // namespace

void attend_by_gather(const TeamWork& work) { Gather(work).attend_all(); }

}  // namespace ringmark::runtime::dense
