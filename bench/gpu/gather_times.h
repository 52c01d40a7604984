// Scattered blocks by the gather kernel of the transports beside a plain copy of as many bytes, checked byte by byte.
#pragma once

#include "bench/gpu/kernel_table.h"

namespace ringmark::bench {

// By block size, out of this GPU's memory, and out of the next one's where there is one that it can read.
void time_gathers(const KernelOptions& options, KernelTable& table);

}  // namespace ringmark::bench
