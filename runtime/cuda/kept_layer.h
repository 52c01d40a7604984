// The kept K and V of one layer that still grows, in the memory of this rank's GPU: runtime::KeptLayer with blocks as
// they came in, in plain order. A growing chunk stands in its place in the exposed arena from its first token on; peers
// read it only when it is closed.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/cuda/device_transport.h"
#include "core/cuda/buffer.h"
#include "core/cuda/stream.h"
#include "kernels/cuda/layer.h"
#include "kvstore/snapshot.h"
#include "runtime/cuda/step_rows.h"
#include "runtime/kept_layer.h"

namespace ringmark::runtime::cuda {

class DeviceKeptLayer {
 public:
  // Regions of the transport, which has nothing exposed yet.
  static constexpr int kBlockRegion = 0;
  static constexpr int kLandmarkRegion = 1;

  // Collective: an empty layer; exposes and publishes its arenas. shape.format is kAsInput. All work is enqueued on
  // `stream`.
  DeviceKeptLayer(comm::Communicator& communicator, comm::cuda::DeviceTransport& transport, const KeptShape& shape,
                  cudaStream_t stream);

  // Collective: as KeptLayer::load.
  void load(const kvstore::Snapshot& snapshot);

  // Collective: the rows join the layer; when one of any rank closes a chunk, peers may read it when this returns.
  // `uploaded`: the same rows on the device.
  void append(const NewTokens& rows, const StepRows& uploaded);

  const KeptShape& shape() const { return shape_; }
  const AttentionProblem& problem() const { return shape_.problem; }
  const KeptSequences& sequences() const { return sequences_; }
  RankId rank() const { return rank_; }
  // What kernels know of the layer, and of this rank's chunks alone, counted by their slots.
  const kernels::cuda::LayerShape& layer() const { return layer_; }
  const kernels::cuda::LayerShape& own_layer() const { return own_layer_; }

  // On the device.
  const kernels::cuda::ChunkGeometry* chunks() const { return chunks_.data(); }
  // By chunk and kv head, by chunk: those of this rank, and of its peers where the GPU reads their memory itself.
  const std::byte* const* blocks() const { return block_table_.data(); }
  const float* const* records() const { return record_table_.data(); }
  const float* const* own_records() const { return own_records_.data(); }  // by slot
  const std::int32_t* own_ids() const { return own_ids_.data(); }          // by slot

  // Puts blocks and records of peers, which were read into own memory, into the tables. The addresses are on the
  // device.
  struct Received {
    ChunkId chunk;
    std::int64_t kv_head;
    const std::byte* block;
    const float* record;  // of the whole chunk; null: not wanted
  };
  void enter(std::span<const Received> received);

  std::int64_t block_bytes() const { return kernels::BlockShape::of(shape_.problem).bytes(); }
  std::int64_t record_floats() const { return landmark_shape_.record_floats(); }
  // Where a chunk stands in the regions of its owner.
  std::int64_t block_offset(ChunkId chunk, std::int64_t kv_head) const;
  std::int64_t record_offset(ChunkId chunk) const;

  // What this rank has to write, copied to the host; valid until the next call.
  kvstore::SnapshotContents contents();

 private:
  bool owns(ChunkId chunk) const { return sequences_.layout().owner(chunk) == rank_; }
  std::int64_t chunk_bytes() const { return shape_.problem.kv_heads * block_bytes(); }
  void fill_tables();
  void build_landmarks(const StepRows& uploaded);

  comm::Communicator& communicator_;
  comm::cuda::DeviceTransport& transport_;
  KeptShape shape_;
  cudaStream_t stream_;
  RankId rank_;
  KeptSequences sequences_;
  kernels::LandmarkShape landmark_shape_;
  kernels::cuda::LayerShape layer_;
  kernels::cuda::LayerShape own_layer_;
  comm::Bytes block_arena_;   // [chunk slot][kv_head][block]
  comm::Bytes record_arena_;  // [chunk slot][record]
  std::vector<std::byte*> block_addresses_;
  std::vector<float*> record_addresses_;
  ringmark::cuda::Buffer<kernels::cuda::ChunkGeometry> chunks_;
  ringmark::cuda::Buffer<std::byte*> block_table_;
  ringmark::cuda::Buffer<float*> record_table_;
  ringmark::cuda::Buffer<float*> own_records_;
  ringmark::cuda::Buffer<std::int32_t> own_ids_;
  // Of the chunks that a step closes.
  ringmark::cuda::Buffer<std::int32_t> closing_ids_;
  ringmark::cuda::Buffer<std::int64_t> closing_rows_;
  ringmark::cuda::Buffer<std::uint8_t> closing_landmarks_;
  // What contents() shows.
  std::vector<std::byte> host_blocks_;
  std::vector<float> host_records_;
};

}  // namespace ringmark::runtime::cuda
