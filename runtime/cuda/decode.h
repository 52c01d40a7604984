// Decoding on a GPU over blocks in device memory: the steps of runtime/decode.h, the same choices, and results within
// the rounding of fp32. What a rank reads of its peers, its GPU reads from their memory where it can; otherwise
// (nccl) the blocks of a tile are fetched by one planned exchange. Nothing is pushed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "comm/cuda/device_transport.h"
#include "kernels/cuda/few/attend.h"
#include "runtime/cuda/kept_layer.h"
#include "runtime/cuda/peer_blocks.h"
#include "runtime/cuda/step_rows.h"
#include "runtime/decode_engine.h"
#include "runtime/memory_plan.h"

namespace ringmark::runtime::cuda {

struct DeviceDecodeOptions {
  std::int64_t receive_bytes = std::int64_t{256} << 20;  // blocks of peers held at once, where they have to be fetched
  std::int64_t tile_rows = 256;                          // rows done at once
  Trace* trace = nullptr;
};

class DeviceDecoder final : public DecodeEngine {
 public:
  // Collective. The transport has nothing exposed yet. Throws Error(kBadInput) when receive_bytes are too few for one
  // row.
  DeviceDecoder(comm::Communicator& communicator, comm::cuda::DeviceTransport& transport, const KeptShape& shape,
                const DeviceDecodeOptions& options);
  ~DeviceDecoder() override;

  // Of one rank of `ranks`, the fullest; before anything is allocated. An upper bound: received blocks take room only
  // where they have to be fetched.
  static MemoryPlan plan(const KeptShape& shape, int ranks, const DeviceDecodeOptions& options);

  const KeptSequences& sequences() const override { return layer_.sequences(); }
  void load(const kvstore::Snapshot& snapshot) override { layer_.load(snapshot); }
  DecodeStep step(const NewTokens& rows, bool stop) override;
  kvstore::SnapshotContents contents() override { return layer_.contents(); }
  const StageClock& clock() const override { return clock_; }
  // Rows that are kept without attending go here. Its work is enqueued on stream().
  DeviceKeptLayer& layer() { return layer_; }
  cudaStream_t stream() const { return stream_; }

 private:
  struct Tile;
  struct Lists;

  bool alone() const { return communicator_.size() == 1; }
  const std::byte* scoring_queries() const;
  std::string stage(std::string_view work) const;
  DecodeStep run_tile(const NewTokens& rows, bool stop);
  void reserve(std::int64_t rows);
  void attend_window(Tile& tile);
  void select(Tile& tile, bool stop);
  Lists score(std::int64_t rows);
  void select_alone(const Lists& lists);
  void select_together(Tile& tile, const Lists& lists, bool stop);
  void attend_chosen();
  DecodeStep finish(Tile& tile);

  comm::Communicator& communicator_;
  DeviceDecodeOptions options_;
  ringmark::cuda::Stream stream_;
  DeviceKeptLayer layer_;
  PeerBlocks peers_;
  StepRows rows_;
  StageClock clock_;
  std::int64_t tile_rows_;
  int processors_ = 1;
  std::int64_t steps_ = 0;

  // Results of the own rows, behind each other so that one copy brings them to the host.
  float* out() const { return results_.data(); }                                                      // [rows, H, d]
  float* lse() const { return out() + result_heads_ * layer_.layer().head_dim; }                      // [rows, H]
  std::int32_t* selection() const { return reinterpret_cast<std::int32_t*>(lse() + result_heads_); }  // [rows, Hkv, K]
  std::int64_t result_words(std::int64_t rows) const;
  ringmark::cuda::Buffer<float> results_;
  std::int64_t result_heads_ = 0;  // (row, head) pairs
  // Of all rows: lists of splits and joined ones.
  ringmark::cuda::Buffer<kernels::Candidate> split_candidates_, candidates_;
  ringmark::cuda::Buffer<kernels::LogSum> split_sums_, sums_;
  ringmark::cuda::Buffer<float> chosen_scores_, window_weights_;
  ringmark::cuda::Buffer<float> part_out_;
  ringmark::cuda::Buffer<float2> part_mass_;
  ringmark::cuda::PinnedBytes host_results_;
};

}  // namespace ringmark::runtime::cuda
