#include "runtime/block_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace ringmark::runtime {
namespace {

using kernels::BlockShape;
using kvstore::BlockCache;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace

BlockReader::BlockReader(const KeptLayer& layer, comm::BlockTransport& transport, kvstore::BlockCache& cache)
    : layer_(layer),
      transport_(transport),
      cache_(cache),
      decodes_(layer.shape().format != kvstore::BlockFormat::kAsInput),
      table_(BlockShape::of(layer.problem()), layer.grid().chunk_count(), layer.problem().kv_heads),
      records_{layer.landmark_shape(), std::vector<const float*>(size(layer.grid().chunk_count()), nullptr)} {}

std::int64_t BlockReader::entry_bytes(const KeptShape& shape) {
  constexpr std::int64_t kAlignment = 64;
  const std::int64_t block = BlockShape::of(shape.problem).bytes();
  const std::int64_t bytes = block + BlockParcel(shape.problem, shape.landmark_shape(), block).landmark_bytes();
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

bool BlockReader::needs_cache(const BlockId& block) const {
  return decodes_ || layer_.layout().owner(block.chunk) != layer_.rank();
}

kvstore::BlockKey BlockReader::key_of(const BlockId& block) const {
  return {layer_.shape().layer, block.chunk, block.kv_head, layer_.shape().generation};
}

void BlockReader::start(std::span<const BlockId> needs) {
  std::vector<BlockId> blocks;
  for (const BlockId& block : needs) {
    if (is_remote(block) && !cache_.find(key_of(block))) blocks.push_back(block);
  }
  if (!blocks.empty()) started_.emplace(begin_pull(std::move(blocks)));
}

void BlockReader::hold(std::span<const BlockId> needs) {
  std::vector<BlockId> own, remote;
  for (const BlockId& block : needs) {
    if (!needs_cache(block)) {
      enter(block, layer_.kept_block(block.chunk, block.kv_head).data());
    } else if (auto pin = cache_.find(key_of(block))) {
      enter(block, *pin);
      pins_.push_back(std::move(*pin));
      ++counts_.cache_hits;
    } else {
      (is_remote(block) ? remote : own).push_back(block);
    }
  }
  // What was found is pinned by now: nothing that comes can push it out.
  if (!remote.empty()) {
    const std::optional<Pull> started = std::exchange(started_, std::nullopt);
    if (started) {
      const auto begun = [&](const BlockId& block) { return std::ranges::binary_search(started->blocks, block); };
      finish_pull(*started);
      std::erase_if(remote, begun);
    }
    finish_pull(begin_pull(std::move(remote)));
  }
  for (const BlockId& block : own) decode(block, layer_.kept_block(block.chunk, block.kv_head), {});
}

BlockReader::Pull BlockReader::begin_pull(std::vector<BlockId> blocks) {
  const BlockParcel& parcel = layer_.parcel();
  Pull pull{std::move(blocks), {}, nullptr};
  if (pull.blocks.empty()) return pull;
  pull.parcels.resize(pull.blocks.size() * size(parcel.bytes()));
  std::vector<comm::RemoteRead> reads;
  comm::Bytes rest = pull.parcels;
  const auto read = [&](const BlockId& block, int region, std::int64_t offset, std::int64_t bytes) {
    const auto peer = static_cast<int>(layer_.layout().owner(block.chunk).value());
    if (bytes > 0) reads.push_back({peer, region, offset, rest.first(size(bytes))});
    rest = rest.subspan(size(bytes));
  };
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  for (const BlockId& block : pull.blocks) {
    const std::int64_t slot = layer_.layout().slot(block.chunk);
    const std::int64_t record = slot * parcel.record_floats();
    const std::int64_t place = slot * layer_.problem().kv_heads + block.kv_head;
    read(block, KeptLayer::kBlockRegion, place * parcel.block_bytes(), parcel.block_bytes());
    read(block, KeptLayer::kLandmarkRegion, (record + parcel.keys_at(block.kv_head)) * kFloat, parcel.key_bytes());
    read(block, KeptLayer::kLandmarkRegion, (record + parcel.biases_at(block.kv_head)) * kFloat, parcel.bias_bytes());
  }
  pull.reads = transport_.get(reads);
  counts_.bytes_pulled += static_cast<std::int64_t>(pull.parcels.size());
  return pull;
}

void BlockReader::finish_pull(const Pull& pull) {
  if (pull.blocks.empty()) return;
  pull.reads->wait();
  const BlockParcel& parcel = layer_.parcel();
  std::span<const std::byte> next = pull.parcels;
  for (const BlockId& block : pull.blocks) {
    const auto one = next.first(size(parcel.bytes()));
    layer_.tags().verify(static_cast<int>(layer_.rank().value()),
                         static_cast<int>(layer_.layout().owner(block.chunk).value()), block.chunk, block.kv_head, one);
    ++counts_.blocks_pulled;
    decode(block, one.first(size(parcel.block_bytes())), one.subspan(size(parcel.block_bytes())));
    next = next.subspan(one.size());
  }
}

// landmark: of a remote block; own records are read where they stand.
void BlockReader::decode(const BlockId& block, std::span<const std::byte> encoded,
                         std::span<const std::byte> landmark) {
  auto place = cache_.reserve(key_of(block));
  require(place.has_value(), "the blocks that are needed at once fit into the cache");
  const auto block_bytes = size(BlockShape::of(layer_.problem()).bytes());
  layer_.codec().decode(encoded, place->bytes().first(block_bytes));
  std::copy(landmark.begin(), landmark.end(), place->bytes().begin() + static_cast<std::ptrdiff_t>(block_bytes));
  BlockCache::Pin pin = std::move(*place).commit();
  enter(block, pin);
  pins_.push_back(std::move(pin));
}

void BlockReader::enter(const BlockId& block, const std::byte* bytes) {
  table_.set(block.chunk, block.kv_head, bytes);
  entered_.push_back(block);
  const bool own = layer_.layout().owner(block.chunk) == layer_.rank();
  if (own) records_.records[size(block.chunk.value())] = layer_.record(block.chunk).data();
}

void BlockReader::enter(const BlockId& block, const BlockCache::Pin& pin) {
  const std::byte* bytes = pin.block().data();
  enter(block, bytes);
  const BlockParcel& parcel = layer_.parcel();
  if (layer_.layout().owner(block.chunk) == layer_.rank() || parcel.record_floats() == 0) return;
  std::vector<float>& record = assembled_[block.chunk];
  record.resize(size(parcel.record_floats()));
  const std::byte* landmark = bytes + BlockShape::of(layer_.problem()).bytes();
  std::memcpy(record.data() + parcel.keys_at(block.kv_head), landmark, size(parcel.key_bytes()));
  std::memcpy(record.data() + parcel.biases_at(block.kv_head), landmark + parcel.key_bytes(),
              size(parcel.bias_bytes()));
  records_.records[size(block.chunk.value())] = record.data();
}

void BlockReader::release() {
  for (const BlockId& block : entered_) {
    table_.set(block.chunk, block.kv_head, nullptr);
    records_.records[size(block.chunk.value())] = nullptr;
  }
  entered_.clear();
  assembled_.clear();
  pins_.clear();
}

}  // namespace ringmark::runtime
