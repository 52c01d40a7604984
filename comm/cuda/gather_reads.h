// Many copies as one kernel: the small reads of a batch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "comm/cuda/copy.h"

namespace ringmark::comm::cuda {

// A warp takes one copy at a time; longer ones are worth cutting, so that all warps have as much to do.
inline constexpr std::int64_t kCopyPerWarp = 16 * 1024;

// How much of the GPU a gather may take. Its own memory is as fast as all multiprocessors together; a link to a peer is
// full with far fewer, and the rest belongs to the attention kernels that run meanwhile.
enum class Reach { kOwnMemory, kPeers };

// copies: on the device, [count], of any alignment and length; those whose source and destination agree modulo 16 move
// 16 bytes a load. Destinations do not overlap.
void gather_reads(const Copy* copies, std::int64_t count, Reach reach, cudaStream_t stream);

}  // namespace ringmark::comm::cuda
