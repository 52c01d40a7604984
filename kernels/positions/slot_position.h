// The position id of a slot: what rotates its rows. Not the slot itself where chunks end with a landmark.
#pragma once

#include <cstdint>

namespace ringmark::kernels {

// slot          of a document, 0-based
// landmarks     the last of every chunk_size slots is a landmark
// Ordinary tokens have the positions 0, 1, 2, ... without gaps; a landmark has that of the ordinary token behind it (as
// in HiLS): with 63 ordinary tokens a chunk, slots 63 and 64 are both at position 63.
constexpr std::int64_t position_of_slot(std::int64_t slot, std::int64_t chunk_size, bool landmarks) {
  return landmarks ? slot - slot / chunk_size : slot;
}

}  // namespace ringmark::kernels
