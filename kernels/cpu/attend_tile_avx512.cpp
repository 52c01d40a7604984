// Compiled with -march=x86-64-v4. The tile functions are written in terms of what the simd header defines.
#include "kernels/cpu/attend_tile.h"
// clang-format off
#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/attend_tile.inl"
// clang-format on

namespace ringmark::kernels::cpu {

const TileKernels kTileKernelsAvx512 = {widen_rows,   pack_columns, pack_values,   multiply,       sum_columns,
                                        exponentiate, cap_scores,   attend_online, attend_weighted};

}  // namespace ringmark::kernels::cpu
