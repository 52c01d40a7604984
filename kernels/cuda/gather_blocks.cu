// Scattered copies of whole blocks, also out of a peer's memory: what counts is the number of bytes in flight, not who
// copies them, so a few thread blocks suffice and the rest of the chip stays free for attention.
#include <cuda_runtime.h>

#include "kernels/cuda/blocks.h"
#include "kernels/cuda/launch.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 8;                       // words a thread: 32 KiB a thread block
constexpr int kPieceWords = kThreads * kInFlight;  // what a thread block copies at a time
constexpr int kThreadBlocksPerProcessor = 2;

template <class Word>
__global__ void __launch_bounds__(kThreads)
    gather_blocks_kernel(const std::byte* const* sources, std::byte* const* destinations, std::int64_t count,
                         std::int64_t words) {
  const std::int64_t pieces = (words + kPieceWords - 1) / kPieceWords;
  for (std::int64_t task = blockIdx.x; task < count * pieces; task += gridDim.x) {
    const std::int64_t block = task / pieces;
    const std::int64_t first = (task - block * pieces) * kPieceWords + threadIdx.x;
    const auto* from = reinterpret_cast<const Word*>(sources[block]);
    auto* to = reinterpret_cast<Word*>(destinations[block]);
    Word held[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::int64_t word = first + i * kThreads;
      if (word < words) held[i] = __ldcs(from + word);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::int64_t word = first + i * kThreads;
      if (word < words) to[word] = held[i];
    }
  }
}

template <class Word>
void launch(const std::byte* const* sources, std::byte* const* destinations, std::int64_t count, std::int64_t bytes,
            cudaStream_t stream) {
  const std::int64_t words = bytes / static_cast<std::int64_t>(sizeof(Word));
  int device = 0, processors = 0;
  ringmark::cuda::check(cudaGetDevice(&device), "ask for the device");
  ringmark::cuda::check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                        "ask for the number of processors");
  const std::int64_t tasks = count * ceil_div(words, kPieceWords);
  const std::int64_t most = std::int64_t{processors} * kThreadBlocksPerProcessor;
  gather_blocks_kernel<Word>
      <<<grid_size(tasks < most ? tasks : most), kThreads, 0, stream>>>(sources, destinations, count, words);
  ringmark::cuda::check_launch("gather_blocks");
}

}  // namespace

void gather_blocks(const std::byte* const* sources, std::byte* const* destinations, std::int64_t count,
                   std::int64_t bytes, cudaStream_t stream) {
  if (count == 0 || bytes == 0) return;
  // In an arena of such blocks every address is a multiple of the largest power of two that divides their size.
  if (bytes % 16 == 0) {
    launch<uint4>(sources, destinations, count, bytes, stream);
  } else if (bytes % 4 == 0) {
    launch<unsigned int>(sources, destinations, count, bytes, stream);
  } else {
    launch<unsigned short>(sources, destinations, count, bytes, stream);
  }
}

}  // namespace ringmark::kernels::cuda
