// Grid sizes, checked: a grid has less than 2^31 blocks along x, and more work than that must not wrap silently.
#pragma once

#include <cstdint>

#include "core/error.h"

namespace ringmark::kernels::cuda {

inline unsigned int grid_size(std::int64_t blocks) {
  require(blocks >= 0 && blocks < std::int64_t{1} << 31, "a kernel has less than 2^31 blocks");
  return static_cast<unsigned int>(blocks);
}

inline std::int64_t ceil_div(std::int64_t value, std::int64_t step) { return (value + step - 1) / step; }

}  // namespace ringmark::kernels::cuda
