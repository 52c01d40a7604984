#include "runtime/dense/team_work.h"

#include <cstring>

namespace ringmark::runtime::dense {

void pack_chunks(const TeamWork& work, std::span<const ChunkId> chunks, std::byte* out) {
  const std::int64_t block_bytes = work.blocks.shape().bytes();
  for (const ChunkId chunk : chunks) {
    for (std::int64_t g = 0; g < work.kv_heads; ++g, out += block_bytes) {
      std::memcpy(out, work.blocks.keys(chunk, g), static_cast<std::size_t>(block_bytes));
    }
  }
}

void list_chunks(const TeamWork& work, std::span<const ChunkId> chunks, const std::byte* packed) {
  for (const ChunkId chunk : chunks) {
    for (std::int64_t g = 0; g < work.kv_heads; ++g, packed += work.blocks.shape().bytes()) {
      work.blocks.set(chunk, g, packed);
    }
  }
}

void attend(const TeamWork& work, std::span<const ChunkId> chunks) {
  const auto span = work.clock.time("attend");
  kernels::attend_causal(work.queries, {0, work.rows()}, chunks, work.blocks, work.softmax, work.threads);
}

}  // namespace ringmark::runtime::dense
