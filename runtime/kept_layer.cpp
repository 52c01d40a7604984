#include "runtime/kept_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "kvstore/crc32c.h"
#include "runtime/agreement.h"

namespace ringmark::runtime {
namespace {

using kernels::BlockShape;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

const KeptShape& decodable(const KeptShape& shape) {
  shape.policy.expect_usual_choice("decode");
  return shape;
}

}  // namespace

KeptShape grown_shape(const kvstore::SnapshotManifest& manifest, std::span<const std::int64_t> capacities) {
  const std::vector<std::int64_t> kept = manifest.problem.starts();
  require(capacities.size() + 1 == kept.size(), "every kept sequence has a capacity");
  KeptShape shape{manifest.layer, manifest.problem, manifest.policy, manifest.format, manifest.generation};
  shape.problem.cu_seqlens = {0};
  for (std::size_t s = 0; s < capacities.size(); ++s) {
    if (capacities[s] < kept[s + 1] - kept[s]) {
      fail_bad_input(fmt::format("capacity of sequence {} = {} is below the {} tokens that are kept of it", s,
                                 capacities[s], kept[s + 1] - kept[s]));
    }
    shape.problem.cu_seqlens.push_back(shape.problem.cu_seqlens.back() + capacities[s]);
  }
  shape.problem.tokens = shape.problem.cu_seqlens.back();
  shape.problem.validate();
  shape.policy.validate(shape.problem);
  return shape;
}

void read_closed_chunk(const kvstore::Snapshot& snapshot, ChunkId kept, const KeptShape& shape,
                       std::span<std::byte> blocks, std::span<float> landmark) {
  if (!snapshot.has_landmark(kept)) landmark = {};
  if (snapshot.manifest().format == shape.format) return snapshot.read(kept, blocks, landmark);
  const BlockShape block = BlockShape::of(shape.problem);
  const kvstore::BlockCodec old(snapshot.manifest().format, block), codec(shape.format, block);
  std::vector<std::byte> encoded(size(shape.problem.kv_heads * old.encoded_bytes()));
  std::vector<std::byte> decoded(size(block.bytes()));
  snapshot.read(kept, encoded, landmark);
  for (std::int64_t kv_head = 0; kv_head < shape.problem.kv_heads; ++kv_head) {
    old.decode(std::span(encoded).subspan(size(kv_head * old.encoded_bytes()), size(old.encoded_bytes())), decoded);
    codec.encode(decoded, blocks.subspan(size(kv_head * codec.encoded_bytes()), size(codec.encoded_bytes())));
  }
}

std::int64_t KeptLayer::exposed_bytes(const KeptShape& shape, int ranks) {
  const partition::SequenceGrid grid(shape.problem, shape.policy);
  const kvstore::BlockCodec codec(shape.format, BlockShape::of(shape.problem));
  const std::int64_t chunks = (grid.chunk_count() + ranks - 1) / ranks;
  const std::int64_t record = shape.landmark_shape().record_floats();
  return chunks * (shape.problem.kv_heads * codec.encoded_bytes() + record * static_cast<std::int64_t>(sizeof(float)));
}

KeptLayer::KeptLayer(comm::Communicator& communicator, comm::BlockTransport& transport, const KeptShape& shape,
                     int threads)
    : communicator_(communicator),
      transport_(transport),
      shape_(decodable(shape)),
      threads_(threads),
      rank_(communicator.rank()),
      sequences_(shape.problem, shape.policy, communicator.size()),
      codec_(shape.format, BlockShape::of(shape.problem)),
      landmark_shape_(shape.landmark_shape()),
      parcel_(shape.problem, landmark_shape_, codec_.encoded_bytes()),
      tags_(shape.layer, grid().chunk_count(), shape.problem.kv_heads),
      closing_(BlockShape::of(shape.problem), grid().chunk_count(), shape.problem.kv_heads),
      landmarks_(landmark_shape_, own_landmarks()) {
  kvstore::check_can_be_kept(shape_.problem, shape_.policy);
  const auto chunks = static_cast<std::int64_t>(layout().chunks_of(rank_).size());
  blocks_ = transport_.expose(chunks * shape_.problem.kv_heads * codec_.encoded_bytes());
  const std::int64_t floats = chunks * landmark_shape_.record_floats();
  const comm::Bytes records = transport_.expose(floats * static_cast<std::int64_t>(sizeof(float)));
  records_ = {reinterpret_cast<float*>(records.data()), size(floats)};
  // A closed chunk without ordinary keys has no landmark; its record still travels and is written.
  std::fill(records_.begin(), records_.end(), 0.0f);
  transport_.publish();
}

KeptLayer::RawChunk& KeptLayer::raw_chunk(ChunkId chunk) {
  RawChunk& raw = raw_[chunk];
  // Slots that were not written yet are never keys, but quantisers look at every slot.
  raw.resize(size(shape_.problem.kv_heads * BlockShape::of(shape_.problem).bytes()), std::byte{0});
  return raw;
}

void KeptLayer::store(TokenId token, std::int64_t row, const NewTokens& rows) {
  const BlockShape block = BlockShape::of(shape_.problem);
  const ChunkId chunk = grid().chunk_of(token);
  const std::int64_t slot = token - grid().tokens_of(chunk).begin;
  std::byte* keys = raw_chunk(chunk).data() + slot * block.row_bytes();
  for (std::int64_t kv_head = 0; kv_head < shape_.problem.kv_heads; ++kv_head, keys += block.bytes()) {
    std::memcpy(keys, rows.keys.row(row, kv_head), size(block.row_bytes()));
    std::memcpy(keys + block.value_offset(), rows.values.row(row, kv_head), size(block.row_bytes()));
  }
}

void KeptLayer::append(std::string_view stage, const NewTokens& rows) {
  const std::vector<TokenId> tokens = place(rows.sequences);
  for (const ChunkId chunk : just_closed_) raw_.erase(chunk);
  just_closed_.clear();
  std::vector<ChunkId> closed;
  for (std::int64_t row = 0; row < rows.rows(); ++row) {
    const TokenId token = tokens[size(row)];
    const ChunkId chunk = grid().chunk_of(token);
    if (owns(chunk)) store(token, row, rows);
    if (sequences_.closes_chunk(token)) {
      closed.push_back(chunk);
      if (owns(chunk)) close(chunk, rows.retrieval_queries.slice(row, row + 1));
    }
    sequences_.add_token(rows.sequences[size(row)], rows.token_id(row));
  }
  if (closed.empty()) return;
  transport_.publish();
  share_checksums(stage, closed);
}

void KeptLayer::close(ChunkId chunk, const RowsView& landmark_query) {
  const BlockShape block = BlockShape::of(shape_.problem);
  const std::span<const std::byte> raw = raw_chunk(chunk);
  for (std::int64_t kv_head = 0; kv_head < shape_.problem.kv_heads; ++kv_head) {
    const auto bytes = raw.subspan(size(kv_head * block.bytes()), size(block.bytes()));
    codec_.encode(bytes,
                  kept_chunk(chunk).subspan(size(kv_head * codec_.encoded_bytes()), size(codec_.encoded_bytes())));
    closing_.set(chunk, kv_head, bytes.data());
  }
  if (shape_.policy.selects()) {
    kernels::build_landmarks(shape_.problem, shape_.policy.scorer, grid(), {&chunk, 1}, landmark_query, closing_,
                             record_place(chunk), threads_);
  }
  pack_landmark(chunk);
  just_closed_.push_back(chunk);
}

std::uint32_t KeptLayer::checksum(ChunkId chunk, std::int64_t kv_head) const {
  const std::span<const std::byte> landmark = std::as_bytes(record(chunk));
  const auto part = [&](std::int64_t first_float, std::int64_t bytes) {
    return landmark.subspan(size(first_float) * sizeof(float), size(bytes));
  };
  const std::uint32_t of_block = kvstore::crc32c(kept_block(chunk, kv_head));
  const std::uint32_t and_keys = kvstore::crc32c(part(parcel_.keys_at(kv_head), parcel_.key_bytes()), of_block);
  return kvstore::crc32c(part(parcel_.biases_at(kv_head), parcel_.bias_bytes()), and_keys);
}

void KeptLayer::share_checksums(std::string_view stage, std::span<const ChunkId> closed) {
  const std::int64_t kv_heads = shape_.problem.kv_heads;
  std::vector<std::vector<ChunkId>> chunks_of(size(layout().ranks()));
  for (const ChunkId chunk : closed) chunks_of[size(layout().owner(chunk).value())].push_back(chunk);
  std::vector<std::uint32_t> mine;
  for (const ChunkId chunk : chunks_of[size(rank_.value())]) {
    for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) mine.push_back(checksum(chunk, kv_head));
  }
  std::vector<std::vector<std::uint32_t>> checksums;
  std::vector<comm::Bytes> all;
  for (const auto& chunks : chunks_of) checksums.emplace_back(chunks.size() * size(kv_heads));
  for (auto& of_rank : checksums) all.push_back(std::as_writable_bytes(std::span(of_rank)));
  communicator_.all_gather(stage, std::as_bytes(std::span(mine)), all);
  for (std::size_t r = 0; r < chunks_of.size(); ++r) {
    for (std::size_t n = 0; n < chunks_of[r].size(); ++n) {
      tags_.set(chunks_of[r][n], std::span(checksums[r]).subspan(n * size(kv_heads), size(kv_heads)));
    }
  }
}

const std::byte* KeptLayer::raw_block(ChunkId chunk, std::int64_t kv_head) const {
  const auto raw = raw_.find(chunk);
  return raw == raw_.end() ? nullptr : raw->second.data() + kv_head * BlockShape::of(shape_.problem).bytes();
}

std::span<std::byte> KeptLayer::kept_chunk(ChunkId chunk) const {
  const std::int64_t bytes = shape_.problem.kv_heads * codec_.encoded_bytes();
  return blocks_.subspan(size(layout().slot(chunk) * bytes), size(bytes));
}

std::span<const std::byte> KeptLayer::kept_block(ChunkId chunk, std::int64_t kv_head) const {
  return kept_chunk(chunk).subspan(size(kv_head * codec_.encoded_bytes()), size(codec_.encoded_bytes()));
}

std::span<float> KeptLayer::record_place(ChunkId chunk) const {
  const std::int64_t floats = landmark_shape_.record_floats();
  return records_.subspan(size(layout().slot(chunk) * floats), size(floats));
}

std::span<const float> KeptLayer::record(ChunkId chunk) const { return record_place(chunk); }

std::vector<ChunkId> KeptLayer::own_landmarks() const {
  std::vector<ChunkId> chunks = layout().chunks_of(rank_);
  std::erase_if(chunks, [&](ChunkId chunk) { return !grid().has_landmark(chunk); });
  return chunks;
}

void KeptLayer::pack_landmark(ChunkId chunk) {
  const std::vector<ChunkId>& chunks = landmarks_.chunks();
  const auto at = std::lower_bound(chunks.begin(), chunks.end(), chunk);
  if (at != chunks.end() && *at == chunk) landmarks_.set(at - chunks.begin(), record(chunk));
}

void KeptLayer::load(const kvstore::Snapshot& snapshot) {
  sequences_.begin_with(snapshot.manifest());
  std::vector<ChunkId> closed;
  agree(communicator_, "load the snapshot", [&] {
    for (const ChunkPlace& place : sequences_.chunks()) {
      if (place.closed) closed.push_back(place.chunk);
      if (!owns(place.chunk)) continue;
      load_chunk(snapshot, place);
      if (place.closed) pack_landmark(place.chunk);
    }
  });
  transport_.publish();
  share_checksums("share the checksums of the snapshot", closed);
}

void KeptLayer::load_chunk(const kvstore::Snapshot& snapshot, const ChunkPlace& place) {
  if (!place.closed) return snapshot.read(place.kept, raw_chunk(place.chunk), {});
  read_closed_chunk(snapshot, place.kept, shape_, kept_chunk(place.chunk), record_place(place.chunk));
}

kvstore::SnapshotContents KeptLayer::contents() const {
  kvstore::SnapshotContents contents{
      shape_.layer, sequences_.kept_problem(shape_.problem), shape_.policy, shape_.format, sequences_.prefixes(), {}};
  for (const ChunkPlace& place : sequences_.chunks()) {
    if (!owns(place.chunk)) continue;
    const std::span<const std::byte> blocks = place.closed ? kept_chunk(place.chunk) : std::span(raw_.at(place.chunk));
    const bool has_record = place.closed && shape_.policy.selects() && grid().has_landmark(place.chunk);
    contents.chunks.push_back(
        {place.kept, place.closed, blocks, has_record ? record(place.chunk) : std::span<const float>()});
  }
  return contents;
}

}  // namespace ringmark::runtime
