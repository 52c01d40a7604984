#include "comm/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace ringmark::comm {
namespace {

constexpr std::size_t kLargest = std::numeric_limits<std::ptrdiff_t>::max() - kArenaAlignment;

}  // namespace

std::shared_ptr<Arena> Arena::allocate(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  if (size > kLargest) return nullptr;
  const std::size_t rounded = (size + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kArenaAlignment, std::max(rounded, kArenaAlignment)));
  if (memory == nullptr) return nullptr;
  return std::shared_ptr<Arena>(new Arena(memory, {.size = size, .spills = false}));
}

std::shared_ptr<Arena> Arena::allocate(std::int64_t bytes, const SpillPolicy& spill) {
  const auto size = static_cast<std::size_t>(bytes);
  return std::shared_ptr<Arena>(new Arena(map_with_spill(size, spill), {.size = size, .spills = true}));
}

std::vector<std::int64_t> agree_on_sizes(Communicator& communicator, std::int64_t bytes, bool allocated) {
  // A failed rank reports the complement of its size: negative, also for sizes near zero.
  auto sizes = communicator.gather_sizes("expose a region", allocated ? bytes : ~bytes);
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    if (sizes[r] >= 0) continue;
    fail_environment(
        fmt::format("rank {}: no memory for a region of {} bytes on rank {}", communicator.rank(), ~sizes[r], r));
  }
  return sizes;
}

AgreedArena allocate_on_all_ranks(Communicator& communicator, std::int64_t bytes,
                                  const std::optional<SpillPolicy>& spill, std::int64_t exposed) {
  require(bytes >= 0, "a region has no negative size");
  AgreedArena agreed;
  std::optional<std::string> lacking;  // said by this rank once the others know
  try {
    agreed.arena = spill ? Arena::allocate(bytes, spill->after(exposed)) : Arena::allocate(bytes);
  } catch (const Error& error) {
    lacking = error.what();
  }
  try {
    agreed.sizes = agree_on_sizes(communicator, bytes, agreed.arena != nullptr);
  } catch (const Error& error) {
    if (!lacking || error.code() != ExitCode::kEnvironment) throw;
    fail_environment(fmt::format("rank {}: {}", communicator.rank(), *lacking));
  }
  return agreed;
}

}  // namespace ringmark::comm
