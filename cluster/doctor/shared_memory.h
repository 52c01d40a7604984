// What /dev/shm of this host offers and what dead jobs have left there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringmark::cluster {

struct SharedMemory {
  std::int64_t bytes = 0;  // 0: there is none
  std::int64_t free = 0;
  std::vector<std::string> leftovers;  // of this user, of MPI, UCX or NCCL, mapped or open in no process
};

SharedMemory look_at_shared_memory();

}  // namespace ringmark::cluster
