// One copy between addresses that this rank's GPU can reach. The host never follows them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringmark::comm::cuda {

struct Copy {
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  std::int64_t bytes = 0;
};

}  // namespace ringmark::comm::cuda
