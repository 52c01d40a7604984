// The attention kernels alone, checked against the plain fp32 ones on some rows of the same input.
#pragma once

#include "bench/gpu/kernel_table.h"

namespace ringmark::bench {

// Exact causal attention at 32768 tokens, H=32, Hkv=8, d=128, bf16.
void time_dense_kernels(const KernelOptions& options, KernelTable& table);
// The window of 512 at 131072 tokens, same heads.
void time_window_kernels(const KernelOptions& options, KernelTable& table);
// 16 chosen chunks a query there, planned beforehand, by how much the queries of a tile agree (union_selection.h).
void time_chosen_kernels(const KernelOptions& options, KernelTable& table);

}  // namespace ringmark::bench
