// Rows for tests of positions: rotated by the public function, in any storage type.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "kernels/positions/rotate.h"

namespace ringmark::kernels {

inline constexpr std::array kRotatingKinds = {PositionKind::kRope, PositionKind::kPi,   PositionKind::kNtk,
                                              PositionKind::kYarn, PositionKind::kHope, PositionKind::kHopePartial,
                                              PositionKind::kXpos};

// Rows of one head in fp32, [positions, head_dim].
inline std::vector<float> rotated(const PositionEncoding& encoding, Side side, const std::vector<float>& rows,
                                  const std::vector<std::int64_t>& positions) {
  const auto count = static_cast<std::int64_t>(positions.size());
  const auto head_dim = static_cast<std::int64_t>(rows.size()) / count;
  std::vector<float> turned(rows.size());
  rotate(encoding, side, {reinterpret_cast<const std::byte*>(rows.data()), DType::kFloat32, count, 1, head_dim},
         positions, std::as_writable_bytes(std::span(turned)), 1);
  return turned;
}

// Elements of pair j in a head.
struct PairPlace {
  std::size_t first;
  std::size_t second;
};
inline PairPlace place_of_pair(PairLayout layout, std::size_t pair, std::int64_t rotary_dim) {
  if (layout == PairLayout::kInterleaved) return {2 * pair, 2 * pair + 1};
  return {pair, pair + static_cast<std::size_t>(rotary_dim / 2)};
}

// Every pair (1, 0) of a query becomes (cos, sin) of its angle, times the amplitude where the encoding has one.
struct UnitPairs {
  std::vector<float> cosine;
  std::vector<float> sine;
};
inline UnitPairs turn_unit_pairs(const PositionEncoding& encoding, std::int64_t head_dim, std::int64_t position) {
  const std::int64_t dims = encoding.rotary_dim_of(head_dim);
  std::vector<float> row(static_cast<std::size_t>(head_dim), 0.0f);
  for (std::size_t j = 0; j < static_cast<std::size_t>(dims / 2); ++j) {
    row[place_of_pair(encoding.layout, j, dims).first] = 1.0f;
  }
  row = rotated(encoding, Side::kQuery, row, {position});
  UnitPairs unit;
  for (std::size_t j = 0; j < static_cast<std::size_t>(dims / 2); ++j) {
    unit.cosine.push_back(row[place_of_pair(encoding.layout, j, dims).first]);
    unit.sine.push_back(row[place_of_pair(encoding.layout, j, dims).second]);
  }
  return unit;
}

}  // namespace ringmark::kernels
