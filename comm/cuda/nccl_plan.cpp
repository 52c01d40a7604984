#include "comm/cuda/nccl_plan.h"

namespace ringmark::comm::cuda {
namespace {

Bytes slot_of(Bytes staging, int rank, int peer, std::size_t slot_bytes) {
  const auto slot = static_cast<std::size_t>(peer < rank ? peer : peer - 1);
  return staging.subspan(slot * slot_bytes, slot_bytes);
}

template <class Span>
bool in_place(const Slice<Span>& message) {
  return message.pieces.size() == 1;
}

ConstBytes pack(const Slice<ConstBytes>& message, Bytes slot, std::vector<Copy>& copies) {
  std::byte* to = slot.data();
  for (const ConstBytes piece : message.pieces) {
    copies.push_back({piece.data(), to, static_cast<std::int64_t>(piece.size())});
    to += piece.size();
  }
  return slot.first(message.bytes);
}

Bytes unpack(const Slice<Bytes>& message, Bytes slot, std::vector<Copy>& copies) {
  const std::byte* from = slot.data();
  for (const Bytes piece : message.pieces) {
    copies.push_back({from, piece.data(), static_cast<std::int64_t>(piece.size())});
    from += piece.size();
  }
  return slot.first(message.bytes);
}

Round& round_at(std::vector<Round>& rounds, std::size_t index) {
  if (rounds.size() <= index) rounds.resize(index + 1);
  return rounds[index];
}

}  // namespace

std::vector<Round> plan_rounds(int rank, std::span<const std::vector<ConstBytes>> wanted_by,
                               std::span<const std::vector<Bytes>> wanted_from, const Staging& staging) {
  const int ranks = static_cast<int>(wanted_by.size());
  std::vector<Round> rounds;
  for (int step = 1; step < ranks; ++step) {
    const int reader = (rank + step) % ranks;
    const auto messages_out = cut_into_slices<ConstBytes>(wanted_by[static_cast<std::size_t>(reader)], staging.rule);
    for (std::size_t i = 0; i < messages_out.size(); ++i) {
      const Slice<ConstBytes>& message = messages_out[i];
      Round& round = round_at(rounds, i);
      const Bytes slot = slot_of(staging.outgoing, rank, reader, staging.rule.longest);
      round.sends.push_back({reader, in_place(message) ? message.pieces[0] : pack(message, slot, round.pack)});
    }
    const int owner = (rank + ranks - step) % ranks;
    const auto messages_in = cut_into_slices<Bytes>(wanted_from[static_cast<std::size_t>(owner)], staging.rule);
    for (std::size_t i = 0; i < messages_in.size(); ++i) {
      const Slice<Bytes>& message = messages_in[i];
      Round& round = round_at(rounds, i);
      const Bytes slot = slot_of(staging.incoming, rank, owner, staging.rule.longest);
      round.receives.push_back({owner, in_place(message) ? message.pieces[0] : unpack(message, slot, round.unpack)});
    }
  }
  return rounds;
}

}  // namespace ringmark::comm::cuda
