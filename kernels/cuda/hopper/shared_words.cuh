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
__device__ inline int load_mark(std::uint32_t address) {
  int mark;
  asm volatile("ld.shared.u16 %0, [%1];" : "=r"(mark) : "r"(address));
  return mark;
}
__device__ inline float2 load_pair(std::uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address));
  return pair;
}
__device__ inline void store_float(std::uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value));
}

// Stores a pair of scores at `place`, and `mark` kMarkOffset + mark_shift bytes behind it, when one of the pair is
// above the gate, and moves the place by kStep, not past `limit`. Without a branch: seven instructions.
template <int kStep, int kMarkOffset>
__device__ inline void push_above(float score0, float score1, float gate, int mark, int mark_shift, int& place,
                                  int limit) {
  asm volatile(
      "{\n"
      ".reg .pred above;\n"
      ".reg .b32 mark_place;\n"
      "setp.gt.f32 above, %1, %3;\n"
      "setp.gt.or.f32 above, %2, %3, above;\n"
      "add.s32 mark_place, %0, %5;\n"
      "@above st.shared.v2.f32 [%0], {%1, %2};\n"
      "@above st.shared.u16 [mark_place + %7], %4;\n"
      "@above add.s32 %0, %0, %8;\n"
      "@above min.s32 %0, %0, %6;\n"
      "}\n"
      : "+r"(place)
      : "f"(score0), "f"(score1), "f"(gate), "r"(mark), "r"(mark_shift), "r"(limit), "n"(kMarkOffset), "n"(kStep));
}

}  // namespace ringmark::kernels::cuda::hopper
