#include "comm/peer_failure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "comm/current_step.h"

namespace ringmark::comm {

std::string place_text() {
  const std::string words = words_of(current_step());
  return words.empty() ? "" : fmt::format(" ({})", words);
}

std::string waited_text(int rank, std::string_view stage, std::chrono::duration<double> waited,
                        std::span<const int> peers) {
  return fmt::format("rank {}: stage '{}': waited {:.1f} s for {} {}{}", rank, stage, waited.count(),
                     peers.size() == 1 ? "rank" : "ranks", fmt::join(peers, ", "), place_text());
}

std::string wrong_size_text(int rank, std::string_view stage, int peer, std::int64_t sent, std::int64_t expected) {
  return fmt::format("rank {}: stage '{}': rank {} sent {} bytes where {} were expected", rank, stage, peer, sent,
                     expected);
}

}  // namespace ringmark::comm
