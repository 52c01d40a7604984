#include "runtime/score_exchange.h"

#include <cstddef>
#include <cstring>

namespace ringmark::runtime {
namespace {

using kernels::CandidateLists;

// A message: whether to stop, candidates, sums, then the lse of the sender's rows.
class Message {
 public:
  explicit Message(std::size_t bytes) : bytes_(bytes) {}

  template <class T>
  void put(std::span<const T> values) {
    if (!values.empty()) std::memcpy(bytes_.data() + at_, values.data(), values.size_bytes());
    at_ += values.size_bytes();
  }
  template <class T>
  void take(std::span<T> values) {
    if (!values.empty()) std::memcpy(values.data(), bytes_.data() + at_, values.size_bytes());
    at_ += values.size_bytes();
  }
  std::span<std::byte> bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
};

}  // namespace

StepScores exchange_scores(comm::Communicator& communicator, std::string_view stage, const CandidateLists& scored,
                           std::span<const RankId> homes, std::span<const float> lse_window, bool stop) {
  const auto heads = static_cast<std::size_t>(scored.heads);
  const std::size_t list_bytes = std::span(scored.candidates).size_bytes() + std::span(scored.sums).size_bytes();
  std::vector<Message> messages;
  std::vector<comm::Bytes> all;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    std::size_t rows = 0;
    for (const RankId home : homes) rows += home == RankId(rank) ? 1 : 0;
    messages.emplace_back(sizeof(std::int64_t) + list_bytes + rows * heads * sizeof(float));
  }
  for (Message& message : messages) all.push_back(message.bytes());

  StepScores scores;
  const RankId self(communicator.rank());
  Message mine(all[static_cast<std::size_t>(self.value())].size());
  const std::int64_t asked = stop ? 1 : 0;
  mine.put(std::span(&asked, 1));
  mine.put(std::span<const kernels::Candidate>(scored.candidates));
  mine.put(std::span<const kernels::LogSum>(scored.sums));
  for (std::size_t row = 0; row < homes.size(); ++row) {
    if (homes[row] == self) mine.put(lse_window.subspan(row * heads, heads));
  }
  communicator.all_gather(stage, mine.bytes(), all);

  scores.lse_window.resize(homes.size() * heads);
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    std::int64_t asks = 0;
    CandidateLists& part = scores.parts.emplace_back(scored.rows, scored.heads, scored.topk);
    messages[rank].take(std::span(&asks, 1));
    messages[rank].take(std::span(part.candidates));
    messages[rank].take(std::span(part.sums));
    for (std::size_t row = 0; row < homes.size(); ++row) {
      if (homes[row] != RankId(static_cast<std::int64_t>(rank))) continue;
      messages[rank].take(std::span(scores.lse_window).subspan(row * heads, heads));
    }
    scores.stop = scores.stop || asks != 0;
    if (RankId(static_cast<std::int64_t>(rank)) != self) {
      scores.bytes_received += static_cast<std::int64_t>(all[rank].size());
    }
  }
  return scores;
}

}  // namespace ringmark::runtime
