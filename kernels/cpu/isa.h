// Which instruction set the fast kernels use. The baseline is x86-64-v3 (AVX2, FMA); AVX-512 is taken when the
// processor has it. Both give the same bits.
#pragma once

namespace ringmark::kernels::cpu {

enum class Isa { kAvx2, kAvx512 };

bool supported(Isa isa);
Isa active_isa();
// For tests: makes active_isa() return `isa`, which must be supported. Not thread safe.
void force_isa(Isa isa);
const char* name_of(Isa isa);

}  // namespace ringmark::kernels::cpu
