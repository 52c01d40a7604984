// Counter-based random numbers: a value depends on seed, stream and coordinates alone (splitmix64), so that every rank
// makes its own part of what is planted, in any order.
#pragma once

#include <cstdint>

namespace ringmark::runtime {

inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::int64_t index, std::int64_t part = 0) {
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ull + stream;
  for (const std::int64_t coordinate : {index, part}) {
    state += static_cast<std::uint64_t>(coordinate) + 0x9E3779B97F4A7C15ull;
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
    state ^= state >> 31;
  }
  return state;
}

// In (0, 1).
inline double unit_interval(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

}  // namespace ringmark::runtime
