// Candidates with the scores of the CPU. About half of the choices that approximate scores leave open hang on chunks of
// the lists alone: with these scored exactly they are settled, and no other chunk need be scored again.
#pragma once

#include "kernels/cuda/landmark_score.cuh"
#include "kernels/cuda/settling.cuh"

namespace ringmark::kernels::cuda {

// The lists of `lanes` get exact scores. Uses the room of the picks' scores.
template <int kGroup>
__device__ void score_lists_exactly(const Settling& s, const Span<kGroup>& span, Scratch& scratch, unsigned lanes,
                                    int lane) {
  const LayerShape& shape = s.shape;
  float* query = scratch.scores;
  for (; lanes != 0; lanes &= lanes - 1) {
    const int owner = __ffs(static_cast<int>(lanes)) - 1, landmark_head = span.head(owner) >> s.landmark_shift;
    const std::int64_t first = span.of_rank(s, owner) * shape.head_dim;
    for (int channel = lane; channel < shape.head_dim; channel += 32) {
      query[channel] = __fmul_rn(shape.scale, element(s.queries, shape.dtype, first + channel));
    }
    __syncwarp();
    Candidate* list = scratch.lists + owner * s.list_stride();
    for (int at = lane; at < s.lists.capacity; at += 32) {
      if (list[at].chunk < 0) continue;
      const float* record = s.records[list[at].chunk];
      const float product = chain_product(query, record + landmark_head * shape.head_dim, shape.head_dim);
      list[at].score = __fadd_rn(product, record[shape.landmark_heads * shape.head_dim + landmark_head]);
    }
    __syncwarp();  // all have read the query
  }
}

}  // namespace ringmark::kernels::cuda
