#include "runtime/cuda/kept_layer.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/landmarks.h"
#include "runtime/agreement.h"
#include "runtime/cuda/workspace.h"

namespace ringmark::runtime::cuda {
namespace {

using kernels::cuda::BlockOrder;
using kernels::cuda::LayerShape;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

LayerShape layer_shape(const KeptShape& shape, const partition::SequenceGrid& grid) {
  AttentionPolicy policy = shape.policy;
  if (!policy.selects()) policy.scorer = Scorer::kNone;
  return LayerShape::of(shape.problem, policy, grid);
}

template <class T>
void upload(ringmark::cuda::Buffer<T>& buffer, const std::vector<T>& values, cudaStream_t stream) {
  Workspace::reserve(buffer, static_cast<std::int64_t>(values.size()));
  buffer.upload(values.data(), static_cast<std::int64_t>(values.size()), stream);
}

void wait(cudaStream_t stream) { ringmark::cuda::check(cudaStreamSynchronize(stream), "wait for the GPU"); }

}  // namespace

DeviceKeptLayer::DeviceKeptLayer(comm::Communicator& communicator, comm::cuda::DeviceTransport& transport,
                                 const KeptShape& shape, cudaStream_t stream)
    : communicator_(communicator),
      transport_(transport),
      shape_(shape),
      stream_(stream),
      rank_(communicator.rank()),
      sequences_(shape.problem, shape.policy, communicator.size()),
      landmark_shape_(shape.landmark_shape()),
      layer_(layer_shape(shape, sequences_.grid())),
      own_layer_(layer_) {
  require(shape.format == kvstore::BlockFormat::kAsInput, "kernels read blocks as they came in");
  const auto chunks = static_cast<std::int64_t>(sequences_.layout().chunks_of(rank_).size());
  own_layer_.chunk_count = static_cast<std::int32_t>(chunks);
  block_arena_ = transport_.expose(chunks * chunk_bytes());
  record_arena_ = transport_.expose(chunks * record_floats() * kFloat);
  // Slots that are not written yet go into snapshots of growing chunks.
  for (const comm::Bytes arena : {block_arena_, record_arena_}) {
    if (arena.empty()) continue;
    ringmark::cuda::check(cudaMemsetAsync(arena.data(), 0, arena.size(), stream_), "clear the arenas");
  }
  transport_.publish();
  fill_tables();
}

std::int64_t DeviceKeptLayer::block_offset(ChunkId chunk, std::int64_t kv_head) const {
  return sequences_.layout().slot(chunk) * chunk_bytes() + kv_head * block_bytes();
}

std::int64_t DeviceKeptLayer::record_offset(ChunkId chunk) const {
  return sequences_.layout().slot(chunk) * record_floats() * kFloat;
}

void DeviceKeptLayer::fill_tables() {
  const partition::Layout& layout = sequences_.layout();
  const std::int64_t kv_heads = shape_.problem.kv_heads;
  block_addresses_.assign(size(sequences_.grid().chunk_count() * kv_heads), nullptr);
  record_addresses_.assign(size(sequences_.grid().chunk_count()), nullptr);
  std::vector<float*> own_records;
  std::vector<std::int32_t> own_ids;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const bool own = RankId(rank) == rank_;
    if (!own && transport_.collective_get()) continue;
    // Tables of kernels that write hold the same addresses; nobody writes into the memory of a peer.
    const auto region = [&](int number, comm::Bytes mine) {
      return own ? mine.data() : const_cast<std::byte*>(transport_.peer_address(rank, number));
    };
    std::byte* const blocks = region(kBlockRegion, block_arena_);
    std::byte* const records = region(kLandmarkRegion, record_arena_);
    for (const ChunkId chunk : layout.chunks_of(RankId(rank))) {
      for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        block_addresses_[size(chunk.value() * kv_heads + kv_head)] = blocks + block_offset(chunk, kv_head);
      }
      float* const record = reinterpret_cast<float*>(records + record_offset(chunk));
      record_addresses_[size(chunk.value())] = record;
      if (!own) continue;
      own_records.push_back(record);
      own_ids.push_back(static_cast<std::int32_t>(chunk.value()));
    }
  }
  const auto geometry = kernels::cuda::chunk_geometry(sequences_.grid(), shape_.policy);
  upload(chunks_, geometry, stream_);
  upload(block_table_, block_addresses_, stream_);
  upload(record_table_, record_addresses_, stream_);
  upload(own_records_, own_records, stream_);
  upload(own_ids_, own_ids, stream_);
  wait(stream_);
}

void DeviceKeptLayer::enter(std::span<const Received> received) {
  for (const Received& one : received) {
    block_addresses_[size(one.chunk.value() * shape_.problem.kv_heads + one.kv_head)] =
        const_cast<std::byte*>(one.block);
    if (one.record != nullptr) record_addresses_[size(one.chunk.value())] = const_cast<float*>(one.record);
  }
  upload(block_table_, block_addresses_, stream_);
  upload(record_table_, record_addresses_, stream_);
}

void DeviceKeptLayer::append(const NewTokens& rows, const StepRows& uploaded) {
  kernels::cuda::append_rows(layer_, uploaded.geometry(), uploaded.own(), uploaded.keys(), uploaded.values(),
                             block_table_.data(), stream_);
  build_landmarks(uploaded);
  const std::vector<TokenId> tokens = sequences_.place(rows.sequences);
  bool closes = false;
  for (std::int64_t row = 0; row < rows.rows(); ++row) {
    closes = closes || sequences_.closes_chunk(tokens[size(row)]);
    sequences_.add_token(rows.sequences[size(row)], rows.token_id(row));
  }
  if (closes && communicator_.size() > 1) transport_.publish();
}

void DeviceKeptLayer::build_landmarks(const StepRows& uploaded) {
  if (!shape_.policy.selects()) return;
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> landmark_rows;
  for (const StepRows::Closing& closing : uploaded.closings()) {
    if (!sequences_.grid().has_landmark(closing.chunk)) continue;
    ids.push_back(static_cast<std::int32_t>(closing.chunk.value()));
    landmark_rows.push_back(closing.row);
  }
  if (ids.empty()) return;
  upload(closing_ids_, ids, stream_);
  upload(closing_rows_, landmark_rows, stream_);
  upload(closing_landmarks_, std::vector<std::uint8_t>(ids.size(), 1), stream_);
  for (std::size_t n = 0; n < ids.size(); ++n) {
    kernels::cuda::build_landmarks(layer_, {uploaded.geometry(), chunks_.data(), uploaded.count()},
                                   {block_table_.data(), BlockOrder::kPlain}, closing_ids_.data() + n,
                                   closing_landmarks_.data() + n, closing_rows_.data() + n, 1,
                                   uploaded.retrieval_queries(), record_addresses_[size(ids[n])], stream_);
  }
  wait(stream_);  // the host arrays go away
}

void DeviceKeptLayer::load(const kvstore::Snapshot& snapshot) {
  sequences_.begin_with(snapshot.manifest());
  agree(communicator_, "load the snapshot", [&] {
    std::vector<std::byte> blocks(size(chunk_bytes()));
    std::vector<float> record(size(record_floats()));
    for (const ChunkPlace& place : sequences_.chunks()) {
      if (!owns(place.chunk)) continue;
      if (place.closed) {
        read_closed_chunk(snapshot, place.kept, shape_, blocks, record);
      } else {
        snapshot.read(place.kept, blocks, {});
      }
      ringmark::cuda::check(cudaMemcpyAsync(block_arena_.data() + block_offset(place.chunk, 0), blocks.data(),
                                            blocks.size(), cudaMemcpyHostToDevice, stream_),
                            "upload a chunk");
      if (place.closed && snapshot.has_landmark(place.kept)) {
        ringmark::cuda::check(cudaMemcpyAsync(record_arena_.data() + record_offset(place.chunk), record.data(),
                                              record.size() * sizeof(float), cudaMemcpyHostToDevice, stream_),
                              "upload a landmark");
      }
      wait(stream_);
    }
  });
  transport_.publish();
}

kvstore::SnapshotContents DeviceKeptLayer::contents() {
  host_blocks_.resize(block_arena_.size());
  host_records_.resize(record_arena_.size() / sizeof(float));
  const auto download = [&](void* to, comm::Bytes from) {
    if (from.empty()) return;
    ringmark::cuda::check(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyDeviceToHost, stream_),
                          "copy the kept blocks to the host");
  };
  download(host_blocks_.data(), block_arena_);
  download(host_records_.data(), record_arena_);
  wait(stream_);
  kvstore::SnapshotContents contents{
      shape_.layer, sequences_.kept_problem(shape_.problem), shape_.policy, shape_.format, sequences_.prefixes(), {}};
  for (const ChunkPlace& place : sequences_.chunks()) {
    if (!owns(place.chunk)) continue;
    const auto blocks =
        std::span<const std::byte>(host_blocks_).subspan(size(block_offset(place.chunk, 0)), size(chunk_bytes()));
    const bool has_record = place.closed && shape_.policy.selects() && sequences_.grid().has_landmark(place.chunk);
    const auto record =
        std::span<const float>(host_records_).subspan(size(record_offset(place.chunk) / kFloat), size(record_floats()));
    contents.chunks.push_back({place.kept, place.closed, blocks, has_record ? record : std::span<const float>()});
  }
  return contents;
}

}  // namespace ringmark::runtime::cuda
