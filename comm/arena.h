// Memory of this rank that peers read: 64-byte aligned. Not initialised, except where it spills to a file.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "comm/spill_arena.h"

namespace ringmark::comm {

inline constexpr std::size_t kArenaAlignment = 64;

class Arena {
 public:
  // nullptr when the memory cannot be had.
  static std::shared_ptr<Arena> allocate(std::int64_t bytes);
  // What is over the policy's memory lies in a file. Throws Error(kEnvironment) with the number and the folder.
  static std::shared_ptr<Arena> allocate(std::int64_t bytes, const SpillPolicy& spill);

  // The memory stays until the process ends: reads of it may be under way.
  void leave_to_the_end() noexcept { (void)memory_.release(); }

  Bytes bytes() const { return {memory_.get(), memory_.get_deleter().size}; }

 private:
  struct Free {
    std::size_t size = 0;
    bool spills = false;
    void operator()(std::byte* memory) const { spills ? unmap_with_spill(memory, size) : std::free(memory); }
  };
  Arena(std::byte* memory, Free free) : memory_(memory, free) {}

  std::unique_ptr<std::byte, Free> memory_;
};

struct AgreedArena {
  std::shared_ptr<Arena> arena;
  std::vector<std::int64_t> sizes;  // by rank
};

// Collective: the sizes of a region on all ranks. When one rank could not allocate its part, every rank throws
// Error(kEnvironment) naming it and the bytes.
std::vector<std::int64_t> agree_on_sizes(Communicator& communicator, std::int64_t bytes, bool allocated);

// Collective, with the errors of agree_on_sizes. Ranks may have different policies.
//
// exposed  bytes of the policy's memory that earlier arenas of the transport have taken
AgreedArena allocate_on_all_ranks(Communicator& communicator, std::int64_t bytes,
                                  const std::optional<SpillPolicy>& spill, std::int64_t exposed);

}  // namespace ringmark::comm
