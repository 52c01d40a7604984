#include "kernels/cpu/isa.h"

#include "core/error.h"

namespace ringmark::kernels::cpu {
namespace {

Isa& active() {
  static Isa isa = supported(Isa::kAvx512) ? Isa::kAvx512 : Isa::kAvx2;
  return isa;
}

}  // namespace

bool supported(Isa isa) {
  if (isa == Isa::kAvx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

Isa active_isa() { return active(); }

void force_isa(Isa isa) {
  require(supported(isa), "force_isa takes an instruction set that this processor has");
  active() = isa;
}

const char* name_of(Isa isa) { return isa == Isa::kAvx512 ? "avx512" : "avx2"; }

}  // namespace ringmark::kernels::cpu
