// Memory of this rank that peers read: 64-byte aligned, not initialised.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace ringmark::comm {

inline constexpr std::size_t kArenaAlignment = 64;

class Arena {
 public:
  // nullptr when the memory cannot be had.
  static std::shared_ptr<Arena> allocate(std::int64_t bytes);

  Bytes bytes() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  Arena(std::byte* memory, std::size_t size) : memory_(memory), size_(size) {}

  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_;
};

struct AgreedArena {
  std::shared_ptr<Arena> arena;
  std::vector<std::int64_t> sizes;  // by rank
};

// Collective: when one rank cannot have its memory, every rank throws Error(kEnvironment) naming it and the bytes.
AgreedArena allocate_on_all_ranks(Communicator& communicator, std::int64_t bytes);

}  // namespace ringmark::comm
