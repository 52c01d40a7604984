#include "bench/gpu/device_layer.h"

#include "bench/gpu/planted_device.h"
#include "bench/gpu/transfer.h"
#include "kernels/block_table.h"
#include "kernels/cuda/blocks.h"

namespace ringmark::bench {

using ringmark::cuda::Buffer;

DeviceLayer::DeviceLayer(const AttentionProblem& p, const AttentionPolicy& policy,
                         const runtime::PlantedOptions& planted)
    : problem(p),
      grid(problem, policy),
      layout(partition::make_layout(grid, 1, partition::Balance::kContiguous)),
      shape(kernels::cuda::LayerShape::of(problem, policy, grid)),
      q(p.tokens * p.heads * row_bytes()),
      k(p.tokens * p.kv_heads * row_bytes()),
      v(p.tokens * p.kv_heads * row_bytes()) {
  const std::vector<TokenId> tokens = layout.tokens_of(RankId(0));
  PlantedDevice(problem, policy, planted).fill(tokens, q.data(), k.data(), v.data(), stream);
  const auto host_rows = kernels::cuda::row_geometry(grid, tokens);
  const auto host_chunks = kernels::cuda::chunk_geometry(grid, policy);
  rows = upload(host_rows, stream);
  chunks = upload(host_chunks, stream);
  for (const kernels::cuda::ChunkGeometry& chunk : host_chunks) chunk_slots.push_back(chunk.slots_end);
  stream.wait();
}

std::vector<kernels::cuda::Path> tensor_families(const kernels::cuda::LayerShape& shape) {
  using kernels::cuda::Path;
  if (kernels::cuda::choose_path(shape) == Path::kHopper) return {Path::kHopper, Path::kMma};
  return {Path::kMma};
}

LayerBlocks::LayerBlocks(const DeviceLayer& layer, kernels::cuda::BlockOrder order)
    : order_(order),
      arena_(layer.grid.chunk_count() * layer.problem.kv_heads * kernels::BlockShape::of(layer.problem).bytes()) {
  const std::int64_t count = layer.grid.chunk_count();
  std::vector<std::int64_t> first_rows;
  for (ChunkId chunk(0); chunk.value() < count; ++chunk) first_rows.push_back(layer.layout.first_row(chunk));
  const Buffer<std::int64_t> device_first_rows = upload(first_rows, layer.stream);
  const Buffer<std::int32_t> slots = upload(layer.chunk_slots, layer.stream);
  Buffer<std::int32_t> beyond_fp16(1);
  beyond_fp16.fill_bytes(0, layer.stream);
  kernels::cuda::pack_blocks(layer.shape, layer.k.data(), layer.v.data(), device_first_rows.data(), slots.data(), count,
                             order, arena_.data(), beyond_fp16.data(), layer.stream);
  std::vector<const std::byte*> addresses;
  const std::int64_t block_bytes = kernels::BlockShape::of(layer.problem).bytes();
  for (std::int64_t at = 0; at < arena_.bytes(); at += block_bytes) addresses.push_back(arena_.data() + at);
  table_ = upload(addresses, layer.stream);
  layer.stream.wait();
}

}  // namespace ringmark::bench
