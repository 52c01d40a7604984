#include "kernels/positions/alibi.h"

#include <bit>
#include <cmath>

namespace ringmark::kernels {
namespace {

// 2^(-8h/n)
float slope(std::int64_t h, std::int64_t n) {
  return static_cast<float>(std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(n)));
}

}  // namespace

std::vector<float> alibi_slopes(std::int64_t heads) {
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  std::vector<float> slopes;
  for (std::int64_t h = 1; h <= power; ++h) slopes.push_back(slope(h, power));
  for (std::int64_t h = 1; h <= heads - power; ++h) slopes.push_back(slope(2 * h - 1, 2 * power));
  return slopes;
}

}  // namespace ringmark::kernels
