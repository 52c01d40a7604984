#include "kernels/merge_partials.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/exp2.h"

namespace ringmark::kernels {
namespace {

constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();

// e^x for finite x <= 0; 0 where it falls below the smallest normal number.
float exponential(float x) {
  const float t = x * kLog2E;
  if (!(t >= -126.0f)) return std::isnan(t) ? t : 0.0f;
  const float n = std::nearbyint(t);
  return std::ldexp(exp2_fraction(t - n), static_cast<int>(n));
}

struct Shares {
  float into;
  float other;
  float lse;
};

// The larger side is measured from itself, so that its term is exactly 1.
Shares share(float into_lse, float other_lse) {
  const float top = std::max(into_lse, other_lse);
  const float into = exponential(into_lse - top);
  const float other = exponential(other_lse - top);
  const float sum = into + other;
  return {into / sum, other / sum, top + std::log1p(std::min(into, other))};
}

}  // namespace

void merge_partials(TensorView<float, 3> into_out, TensorView<float, 2> into_lse, TensorView<const float, 3> other_out,
                    TensorView<const float, 2> other_lse) {
  const std::int64_t head_dim = into_out.dim(2);
  for (std::int64_t row = 0; row < into_out.dim(0); ++row) {
    for (std::int64_t head = 0; head < into_out.dim(1); ++head) {
      float& lse = into_lse(row, head);
      const float lse_other = other_lse(row, head);
      const bool into_empty = lse == kEmptyLse;
      const bool other_empty = lse_other == kEmptyLse;
      if (into_empty) {
        lse = lse_other;
        for (std::int64_t k = 0; k < head_dim; ++k) {
          into_out(row, head, k) = other_empty ? 0.0f : other_out(row, head, k);
        }
      }
      if (into_empty || other_empty) continue;
      const Shares shares = share(lse, lse_other);
      lse = shares.lse;
      for (std::int64_t k = 0; k < head_dim; ++k) {
        into_out(row, head, k) = shares.into * into_out(row, head, k) + shares.other * other_out(row, head, k);
      }
    }
  }
}

}  // namespace ringmark::kernels
