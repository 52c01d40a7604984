// Approximate scoring alone, checked against the exact scorer on some rows of the same input.
#pragma once

#include "bench/gpu/kernel_table.h"

namespace ringmark::bench {

// The last 16384 rows of a million tokens over 16384 landmarks, H=32, d=128, bf16, by K and by whether neighbouring
// queries agree.
void time_scoring_kernels(const KernelOptions& options, KernelTable& table);

}  // namespace ringmark::bench
