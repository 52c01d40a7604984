#include "kernels/absorb_sinks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/error.h"

namespace ringmark::kernels {

void absorb_sinks(std::span<const float> sink_logits, TensorView<float, 3> out, TensorView<float, 2> lse, int threads) {
  if (sink_logits.empty()) return;
  require(std::ssize(sink_logits) == out.dim(1), "every head has a sink logit");
  constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();
#pragma omp parallel for num_threads(threads)
  for (std::int64_t row = 0; row < out.dim(0); ++row) {
    for (std::int64_t head = 0; head < out.dim(1); ++head) {
      const float sink = sink_logits[static_cast<std::size_t>(head)];
      float& row_lse = lse(row, head);
      if (sink == kEmptyLse) continue;
      if (row_lse == kEmptyLse) {
        row_lse = sink;
        continue;
      }
      const double above = double{sink} - double{row_lse};  // of the sink over the keys
      const auto share = static_cast<float>(1.0 / (1.0 + std::exp(above)));
      row_lse = static_cast<float>(std::max(double{sink}, double{row_lse}) + std::log1p(std::exp(-std::fabs(above))));
      for (std::int64_t k = 0; k < out.dim(2); ++k) out(row, head, k) *= share;
    }
  }
}

}  // namespace ringmark::kernels
