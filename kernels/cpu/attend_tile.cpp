#include "kernels/cpu/attend_tile.h"

#include "kernels/cpu/isa.h"

namespace ringmark::kernels::cpu {

const TileKernels& tile_kernels() { return active_isa() == Isa::kAvx512 ? kTileKernelsAvx512 : kTileKernelsAvx2; }

}  // namespace ringmark::kernels::cpu
