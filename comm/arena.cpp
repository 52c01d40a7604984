#include "comm/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace ringmark::comm {

std::shared_ptr<Arena> Arena::allocate(std::int64_t bytes) {
  constexpr std::size_t kLargest = std::numeric_limits<std::ptrdiff_t>::max() - kArenaAlignment;
  const auto size = static_cast<std::size_t>(bytes);
  if (size > kLargest) return nullptr;
  const std::size_t rounded = (size + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kArenaAlignment, std::max(rounded, kArenaAlignment)));
  if (memory == nullptr) return nullptr;
  return std::shared_ptr<Arena>(new Arena(memory, size));
}

AgreedArena allocate_on_all_ranks(Communicator& communicator, std::int64_t bytes) {
  require(bytes >= 0, "a region has no negative size");
  AgreedArena agreed{.arena = Arena::allocate(bytes), .sizes = {}};
  // A failed rank reports the complement of its size: negative, also for sizes near zero.
  agreed.sizes = communicator.gather_sizes("expose a region", agreed.arena != nullptr ? bytes : ~bytes);
  for (std::size_t r = 0; r < agreed.sizes.size(); ++r) {
    if (agreed.sizes[r] >= 0) continue;
    fail_environment(fmt::format("rank {}: no memory for a region of {} bytes on rank {}", communicator.rank(),
                                 ~agreed.sizes[r], r));
  }
  return agreed;
}

}  // namespace ringmark::comm
