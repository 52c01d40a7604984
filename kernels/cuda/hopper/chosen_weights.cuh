// The mixture weights of a thread's two rows, one chunk after the other.
#pragma once

#include <cstdint>

#include "kernels/cuda/hopper/attend_tile.cuh"
#include "kernels/cuda/hopper/softmax.cuh"

namespace ringmark::kernels::cuda::hopper {

// A row's scores stand in the order of its chosen chunks, which is the order in which a tile visits its union: the slot
// of a chunk is the number of chunks of the row before it. The next score is always on its way.
class RowScores {
 public:
  // scores: the row's [topk]; null for a row outside the call, which then must not take any.
  __device__ void start(const float* scores, std::int32_t topk) {
    next_ = scores;
    left_ = scores == nullptr ? 0 : topk;
    taken_ = 0;
    fetch();
  }
  // exp of the next score.
  __device__ float take() {
    const float weight = exp2_approximate(score_ * kLog2E);
    ++taken_;
    fetch();
    return weight;
  }
  __device__ int taken() const { return taken_; }

 private:
  __device__ void fetch() {
    if (left_ == 0) return;
    score_ = __ldg(next_++);
    --left_;
  }

  const float* next_ = nullptr;
  std::int32_t left_ = 0;
  std::int32_t taken_ = 0;
  float score_ = 0.0f;
};

}  // namespace ringmark::kernels::cuda::hopper
