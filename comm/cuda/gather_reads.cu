#include <cuda_runtime.h>

#include <algorithm>

#include "comm/cuda/gather_reads.h"
#include "core/cuda/error.h"

namespace ringmark::comm::cuda {
namespace {

constexpr int kWarpSize = 32;
constexpr int kWarps = 4;
// Loads of a lane that are in flight together: 4 KiB a warp, which covers the latency of a link with a few hundred
// warps.
constexpr int kLoads = 8;
constexpr int kBlocksPerProcessor = 4;
constexpr int kPeerBlocks = 192;

template <class Word>
__device__ void copy_words(const std::byte* source, std::byte* destination, std::int64_t words, int lane) {
  constexpr int kStep = kLoads * kWarpSize;
  for (std::int64_t first = lane; first < words; first += kStep) {
    const auto* from = reinterpret_cast<const Word*>(source) + first;
    auto* to = reinterpret_cast<Word*>(destination) + first;
    const int left = static_cast<int>(min(words - first, std::int64_t{kStep}));
    Word held[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (i * kWarpSize < left) held[i] = __ldcs(from + i * kWarpSize);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (i * kWarpSize < left) __stwb(to + i * kWarpSize, held[i]);
    }
  }
}

// Source and destination agree modulo the size of a word.
template <class Word>
__device__ void copy_aligned(Copy copy, int lane) {
  constexpr auto kWord = static_cast<std::int64_t>(sizeof(Word));
  const auto misaligned = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(copy.source) % sizeof(Word));
  const std::int64_t head = min(copy.bytes, (kWord - misaligned) % kWord);
  const std::int64_t words = (copy.bytes - head) / kWord;
  const std::int64_t tail = head + words * kWord;
  copy_words<Word>(copy.source + head, copy.destination + head, words, lane);
  if (lane < head) copy.destination[lane] = copy.source[lane];
  if (lane < copy.bytes - tail) copy.destination[tail + lane] = copy.source[tail + lane];
}

__device__ void copy_by_warp(Copy copy, int lane) {
  const auto differing =
      reinterpret_cast<std::uintptr_t>(copy.source) ^ reinterpret_cast<std::uintptr_t>(copy.destination);
  if (differing % sizeof(uint4) == 0) {
    copy_aligned<uint4>(copy, lane);
  } else if (differing % sizeof(unsigned) == 0) {
    copy_aligned<unsigned>(copy, lane);
  } else {
    copy_words<unsigned char>(copy.source, copy.destination, copy.bytes, lane);
  }
}

__global__ void __launch_bounds__(kWarps* kWarpSize) gather_reads_kernel(const Copy* copies, std::int64_t count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t warp = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const std::int64_t warps = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t i = warp; i < count; i += warps) copy_by_warp(copies[i], lane);
}

int most_blocks(Reach reach) {
  int device = 0;
  int processors = 0;
  ringmark::cuda::check(cudaGetDevice(&device), "ask for the current GPU");
  ringmark::cuda::check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                        "count the multiprocessors");
  const int all = processors * kBlocksPerProcessor;
  return reach == Reach::kPeers ? std::min(all, kPeerBlocks) : all;
}

}  // namespace

void gather_reads(const Copy* copies, std::int64_t count, Reach reach, cudaStream_t stream) {
  if (count == 0) return;
  const auto blocks = std::min<std::int64_t>((count + kWarps - 1) / kWarps, most_blocks(reach));
  gather_reads_kernel<<<static_cast<unsigned>(blocks), kWarps * kWarpSize, 0, stream>>>(copies, count);
  ringmark::cuda::check_launch("gather_reads");
}

}  // namespace ringmark::comm::cuda
