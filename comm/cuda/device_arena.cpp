#include "comm/cuda/device_arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace ringmark::comm::cuda {
namespace {

std::int64_t round_up(std::int64_t bytes, std::int64_t granularity) {
  if (bytes > std::numeric_limits<std::int64_t>::max() - granularity) return bytes;
  return (bytes + granularity - 1) / granularity * granularity;
}

std::shared_ptr<DeviceArena> try_allocate(std::int64_t bytes, std::int64_t granularity) {
  try {
    return std::make_shared<DeviceArena>(bytes, granularity);
  } catch (const Error&) {
    return nullptr;  // told by allocate_device_on_all_ranks, on all ranks alike
  }
}

std::int64_t free_memory() {
  std::size_t available = 0;
  std::size_t total = 0;
  ringmark::cuda::check(cudaMemGetInfo(&available, &total), "ask for free GPU memory");
  return static_cast<std::int64_t>(available);
}

}  // namespace

DeviceArena::DeviceArena(std::int64_t bytes, std::int64_t granularity)
    : memory_(round_up(bytes, granularity)), size_(static_cast<std::size_t>(bytes)) {}

AgreedDeviceArena allocate_device_on_all_ranks(Communicator& communicator, std::int64_t bytes,
                                               std::int64_t granularity) {
  constexpr std::string_view kStage = "expose a region";
  require(bytes >= 0, "a region has no negative size");
  AgreedDeviceArena agreed{.arena = try_allocate(bytes, granularity), .sizes = {}};
  // A failed rank reports the complement of its size: negative, also for sizes near zero.
  agreed.sizes = communicator.gather_sizes(kStage, agreed.arena != nullptr ? bytes : ~bytes);
  const auto failed = std::ranges::find_if(agreed.sizes, [](std::int64_t size) { return size < 0; });
  if (failed == agreed.sizes.end()) return agreed;
  const auto available = communicator.gather_sizes(kStage, free_memory());
  const auto rank = failed - agreed.sizes.begin();
  fail_environment(fmt::format("rank {}: no GPU memory for a region of {} bytes on rank {}: {} are free",
                               communicator.rank(), ~*failed, rank, available[static_cast<std::size_t>(rank)]));
}

}  // namespace ringmark::comm::cuda
