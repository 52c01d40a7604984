// The gradients of reference::attend in fp64 with its choice of chunks held fixed, written straight from the formulas
// of docs/numerics.md, "Backward". The fast kernels are checked against it.
#pragma once

#include <span>
#include <vector>

#include "kernels/reference/attention.h"
#include "kernels/select_chunks.h"

namespace ringmark::kernels::reference {

// dL/d of what Layer holds, in its shapes.
struct Gradients {
  std::vector<double> q;            // [N, H, d] as attention queries; mean: as scoring queries too
  std::vector<double> retrieval_q;  // [N, H, d] as retrieval queries, and in the rows of landmark slots as landmark
                                    // queries; zeros unless the layer selects by hils
  std::vector<double> k;            // [N, Hkv, d]
  std::vector<double> v;            // [N, Hkv, d]
};

// selection     what the forward chose for tokens 0, 1, ..., N - 1; without slots where the layer does not select
// out_gradient  [N, H, d] dL/do
// Where the model has no retrieval queries of its own, dL/dq is the sum of q and retrieval_q. Scorers hils, mean and
// none with the chunk-aligned window; logits without cap, bias and sinks.
Gradients backward(const Layer& layer, const Selection& selection, std::span<const double> out_gradient, int threads);

}  // namespace ringmark::kernels::reference
