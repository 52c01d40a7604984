// A planted layer of one document as the kernels take it: rows of q, k and v, their geometry, and the blocks.
#pragma once

#include <cstddef>
#include <vector>

#include "core/cuda/buffer.h"
#include "core/cuda/stream.h"
#include "core/ids.h"
#include "core/problem.h"
#include "kernels/cuda/layer.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"
#include "runtime/planted_layer.h"

namespace ringmark::bench {

struct DeviceLayer {
  DeviceLayer(const AttentionProblem& problem, const AttentionPolicy& policy,
              const runtime::PlantedOptions& planted = {});

  std::int64_t row_bytes() const { return problem.head_dim * size_of(problem.dtype); }
  RowRange all() const { return {0, problem.tokens}; }
  kernels::cuda::Geometry geometry() const { return {rows.data(), chunks.data(), problem.tokens}; }

  AttentionProblem problem;
  partition::SequenceGrid grid;
  partition::Layout layout;
  kernels::cuda::LayerShape shape;
  ringmark::cuda::Stream stream;  // before the buffers, which are filled on it
  ringmark::cuda::Buffer<std::byte> q, k, v;
  ringmark::cuda::Buffer<kernels::cuda::RowGeometry> rows;
  ringmark::cuda::Buffer<kernels::cuda::ChunkGeometry> chunks;
  std::vector<std::int32_t> chunk_slots;  // ChunkGeometry::slots_end
};

// The families with tensor core kernels for a shape that this GPU runs, the fastest first.
std::vector<kernels::cuda::Path> tensor_families(const kernels::cuda::LayerShape& shape);

// All blocks of a layer in one arena.
class LayerBlocks {
 public:
  LayerBlocks(const DeviceLayer& layer, kernels::cuda::BlockOrder order);

  kernels::cuda::DeviceBlocks view() const { return {table_.data(), order_}; }

 private:
  kernels::cuda::BlockOrder order_;
  ringmark::cuda::Buffer<std::byte> arena_;
  ringmark::cuda::Buffer<const std::byte*> table_;
};

}  // namespace ringmark::bench
