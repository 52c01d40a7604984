// One encoding's rotation of one head: the cos and sin of a position, and a head turned by them. rotate() does it for
// rows of storage precision, CachePositions for what a kernel has widened.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/problem.h"
#include "kernels/positions/encoding.h"
#include "kernels/positions/rotate.h"

namespace ringmark::kernels {

inline constexpr std::int64_t kMaxPairs = kMaxHeadDim / 2;

// cos and sin of every turning pair of one row, times its gain and amplitude.
struct RowAngles {
  float cosine[kMaxPairs];
  float sine[kMaxPairs];
};

class Rotation {
 public:
  Rotation(const PositionEncoding& encoding, Side side, std::int64_t head_dim);

  // |position| is at most kMaxPosition.
  void find_angles(std::int64_t position, RowAngles& angles) const;
  // One head of head_dim elements. `in` and `out` may be the same.
  void turn_head(const RowAngles& angles, DType dtype, const std::byte* in, std::byte* out) const;

 private:
  void amplify(std::int64_t position, RowAngles& angles) const;

  PairLayout layout_;
  std::int64_t half_;
  std::int64_t pairs_ = 0;     // that turn: the first ones
  double turns_[kMaxPairs]{};  // a position
  double gain_;
  bool amplified_ = false;
  double growth_[kMaxPairs]{};  // logarithm of the amplitude, a position
  std::int64_t center_;
};

}  // namespace ringmark::kernels
