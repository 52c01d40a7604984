// Memory whose first part is ordinary and whose rest, contiguous behind it, is a mapped file: what a rank keeps over
// its budget lies on disk and is read through the page cache. The file has no name, so nothing is left of it however
// the process ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ringmark::comm {

struct SpillPolicy {
  std::int64_t memory_bytes = 0;  // of all arenas of a transport together, in the order in which they are exposed
  std::string folder;             // on a disk: a folder in /dev/shm or another tmpfs would be memory again

  // What is left to the next arena.
  SpillPolicy after(std::int64_t exposed) const { return {std::max<std::int64_t>(memory_bytes - exposed, 0), folder}; }
};

// Page-aligned and zero. The disk space is reserved before the file is mapped, so that a full disk is known now and not
// a SIGBUS later. Throws Error(kEnvironment) with the number of bytes and the folder.
std::byte* map_with_spill(std::size_t bytes, const SpillPolicy& policy);
// `bytes` as given to map_with_spill.
void unmap_with_spill(std::byte* memory, std::size_t bytes);

}  // namespace ringmark::comm
