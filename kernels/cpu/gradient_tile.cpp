#include "kernels/cpu/gradient_tile.h"

#include "kernels/cpu/isa.h"

namespace ringmark::kernels::cpu {

const GradientKernels& gradient_kernels() {
  return active_isa() == Isa::kAvx512 ? kGradientKernelsAvx512 : kGradientKernelsAvx2;
}

}  // namespace ringmark::kernels::cpu
