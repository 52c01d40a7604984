// Compiled with -march=x86-64-v4. The tile functions are written in terms of what the simd header defines.
#include "kernels/cpu/gradient_tile.h"
// clang-format off
#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/gradient_tile.inl"
// clang-format on

namespace ringmark::kernels::cpu {

const GradientKernels kGradientKernelsAvx512 = {multiply_add, differentiate_window, differentiate_chosen, transpose};

}  // namespace ringmark::kernels::cpu
