// Words of shared memory by their 32-bit address: what a thread keeps there moves, and a 64-bit pointer would cost two
// registers and two additions a step.
#pragma once

#include <cstdint>

namespace ringmark::kernels::cuda::hopper {

__device__ inline float load_float(std::uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
}
__device__ inline int load_int(std::uint32_t address) {
  int value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}
__device__ inline void store_float(std::uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value));
}
__device__ inline void store_int(std::uint32_t address, int value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value));
}

// Stores `score` at `place` and `chunk` kChunkOffset bytes behind it when the score is above the gate, and moves the
// place by kStep, not past `limit`. Without a branch: five instructions.
template <int kStep, int kChunkOffset>
__device__ inline void push_above(float score, float gate, int chunk, int& place, int limit) {
  asm volatile(
      "{\n"
      ".reg .pred above;\n"
      "setp.gt.f32 above, %1, %2;\n"
      "@above st.shared.f32 [%0], %1;\n"
      "@above st.shared.b32 [%0 + %5], %3;\n"
      "@above add.s32 %0, %0, %6;\n"
      "@above min.s32 %0, %0, %4;\n"
      "}\n"
      : "+r"(place)
      : "f"(score), "f"(gate), "r"(chunk), "r"(limit), "n"(kChunkOffset), "n"(kStep));
}

}  // namespace ringmark::kernels::cuda::hopper
