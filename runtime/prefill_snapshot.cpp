#include "runtime/prefill_snapshot.h"

#include <algorithm>
#include <array>

#include "kernels/block_table.h"
#include "kernels/landmarks.h"
#include "kvstore/snapshot.h"
#include "runtime/agreement.h"

namespace ringmark::runtime {
namespace {

using kvstore::BlockCodec;
using kvstore::BlockFormat;

// Blocks that are kept byte for byte are written from where they are.
bool needs_encoding(const BlockCodec& codec, const kernels::BlockShape& shape) {
  return codec.format() != BlockFormat::kAsInput || codec.encoded_bytes() != shape.bytes();
}

void take_larger(kvstore::TensorError& most, const kvstore::TensorError& error) {
  most.largest = std::max(most.largest, error.largest);
  most.relative = std::max(most.relative, error.relative);
}

void take_larger_of_ranks(comm::Communicator& communicator, kvstore::BlockError& error) {
  std::array<double, 4> all = {error.keys.largest, error.keys.relative, error.values.largest, error.values.relative};
  communicator.all_reduce_max("error of kept blocks", all);
  error = {{all[0], all[1]}, {all[2], all[3]}};
}

// The blocks of full chunks, encoded one behind the other; empty where that is not needed.
std::vector<std::byte> encode_full_chunks(const BlockCodec& codec, const kernels::BlockShape& shape,
                                          std::int64_t kv_heads, const PrefillState& state,
                                          kvstore::BlockError& error) {
  std::vector<std::byte> encoded;
  if (!needs_encoding(codec, shape)) return encoded;
  const auto block_bytes = static_cast<std::size_t>(shape.bytes());
  const auto encoded_bytes = static_cast<std::size_t>(codec.encoded_bytes());
  const auto blocks_of_chunk = static_cast<std::size_t>(kv_heads);
  encoded.reserve(state.chunks.size() * blocks_of_chunk * encoded_bytes);
  for (std::size_t slot = 0; slot < state.chunks.size(); ++slot) {
    if (state.grid.tokens_of(state.chunks[slot]).size() < shape.chunk_size) continue;
    for (std::size_t head = 0; head < blocks_of_chunk; ++head) {
      const auto block = state.blocks.subspan((slot * blocks_of_chunk + head) * block_bytes, block_bytes);
      encoded.resize(encoded.size() + encoded_bytes);
      codec.encode(block, std::span(encoded).last(encoded_bytes));
      if (codec.format() == BlockFormat::kAsInput) continue;
      const kvstore::BlockError of_block = codec.error_of(block);
      take_larger(error.keys, of_block.keys);
      take_larger(error.values, of_block.values);
    }
  }
  return encoded;
}

std::vector<kvstore::KeptChunk> kept_chunks(const PrefillState& state, std::int64_t chunk_size, bool selects,
                                            std::span<const std::byte> encoded, std::size_t encoded_chunk_bytes) {
  std::vector<kvstore::KeptChunk> kept;
  const std::size_t chunks = state.chunks.size();
  for (std::size_t slot = 0; slot < chunks; ++slot) {
    const std::size_t chunk_bytes = state.blocks.size() / chunks;
    const std::size_t record_floats = state.records.size() / chunks;
    kvstore::KeptChunk chunk;
    chunk.chunk = state.chunks[slot];
    chunk.closed = state.grid.tokens_of(chunk.chunk).size() == chunk_size;
    chunk.blocks = state.blocks.subspan(slot * chunk_bytes, chunk_bytes);
    if (chunk.closed && !encoded.empty()) {
      chunk.blocks = encoded.first(encoded_chunk_bytes);
      encoded = encoded.subspan(encoded_chunk_bytes);
    }
    if (selects && state.grid.has_landmark(chunk.chunk)) {
      chunk.landmark = state.records.subspan(slot * record_floats, record_floats);
    }
    kept.push_back(chunk);
  }
  return kept;
}

}  // namespace

std::int64_t snapshot_buffer_bytes(const AttentionProblem& problem, BlockFormat format, std::int64_t chunks) {
  const auto shape = kernels::BlockShape::of(problem);
  const BlockCodec codec(format, shape);
  return needs_encoding(codec, shape) ? chunks * problem.kv_heads * codec.encoded_bytes() : 0;
}

PrefillSnapshot write_prefill_snapshot(comm::Communicator& communicator, const SnapshotTarget& target,
                                       const AttentionProblem& problem, const AttentionPolicy& policy,
                                       const PrefillState& state) {
  const auto shape = kernels::BlockShape::of(problem);
  const BlockCodec codec(target.format, shape);
  PrefillSnapshot written;
  std::vector<std::byte> encoded;
  agree(communicator, "encode the blocks",
        [&] { encoded = encode_full_chunks(codec, shape, problem.kv_heads, state, written.error); });
  take_larger_of_ranks(communicator, written.error);
  const auto chunk_bytes = static_cast<std::size_t>(problem.kv_heads * codec.encoded_bytes());
  const kvstore::SnapshotContents contents{
      0,
      problem,
      policy,
      target.format,
      target.prefixes,
      kept_chunks(state, problem.chunk_size, policy.selects(), encoded, chunk_bytes)};
  agree(communicator, "write the snapshot",
        [&] { written.generation = write_snapshot(communicator, target.folder, contents); });
  return written;
}

}  // namespace ringmark::runtime
