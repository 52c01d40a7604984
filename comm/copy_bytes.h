// memcpy and memmove want valid pointers even for zero bytes; empty spans have none.
#pragma once

#include <cstring>

#include "comm/communicator.h"

namespace ringmark::comm {

// Sizes are equal; the ranges may overlap.
inline void copy_bytes(ConstBytes from, Bytes to) {
  if (!from.empty()) std::memmove(to.data(), from.data(), from.size());
}

}  // namespace ringmark::comm
