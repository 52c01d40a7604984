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
using kernels::LandmarkShape;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

LandmarkShape landmark_shape_of(const AttentionProblem& problem, const AttentionPolicy& policy) {
  return LandmarkShape::of(problem, policy.selects() ? policy.scorer : Scorer::kNone);
}

std::vector<std::int64_t> starts_of(const AttentionProblem& problem) {
  return problem.cu_seqlens.empty() ? std::vector<std::int64_t>{0, problem.tokens} : problem.cu_seqlens;
}

}  // namespace

KeptShape grown_shape(const kvstore::SnapshotManifest& manifest, std::span<const std::int64_t> capacities) {
  const std::vector<std::int64_t> kept = starts_of(manifest.problem);
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

std::int64_t KeptLayer::exposed_bytes(const KeptShape& shape, int ranks) {
  const partition::SequenceGrid grid(shape.problem, shape.policy);
  const kvstore::BlockCodec codec(shape.format, BlockShape::of(shape.problem));
  const std::int64_t chunks = (grid.chunk_count() + ranks - 1) / ranks;
  const std::int64_t record = landmark_shape_of(shape.problem, shape.policy).record_floats();
  return chunks * (shape.problem.kv_heads * codec.encoded_bytes() + record * static_cast<std::int64_t>(sizeof(float)));
}

KeptLayer::KeptLayer(comm::Communicator& communicator, comm::BlockTransport& transport, const KeptShape& shape,
                     int threads)
    : communicator_(communicator),
      transport_(transport),
      shape_(shape),
      threads_(threads),
      rank_(communicator.rank()),
      grid_(shape.problem, shape.policy),
      layout_(partition::make_layout(grid_, communicator.size(), partition::Balance::kRotate)),
      codec_(shape.format, BlockShape::of(shape.problem)),
      landmark_shape_(landmark_shape_of(shape.problem, shape.policy)),
      parcel_(shape.problem, landmark_shape_, codec_.encoded_bytes()),
      tags_(shape.layer, grid_.chunk_count(), shape.problem.kv_heads),
      closing_(BlockShape::of(shape.problem), grid_.chunk_count(), shape.problem.kv_heads),
      landmarks_(landmark_shape_, own_landmarks()) {
  const std::vector<std::int64_t> starts = starts_of(shape_.problem);
  ChunkId next(0);
  for (std::size_t s = 0; s + 1 < starts.size(); ++s) {
    const std::int64_t capacity = starts[s + 1] - starts[s];
    places_.push_back({TokenId(starts[s]), next, capacity});
    next = next + chunks_of_length(capacity);
  }
  lengths_.assign(places_.size(), 0);
  const auto chunks = static_cast<std::int64_t>(layout_.chunks_of(rank_).size());
  blocks_ = transport_.expose(chunks * shape_.problem.kv_heads * codec_.encoded_bytes());
  const std::int64_t floats = chunks * landmark_shape_.record_floats();
  const comm::Bytes records = transport_.expose(floats * static_cast<std::int64_t>(sizeof(float)));
  records_ = {reinterpret_cast<float*>(records.data()), size(floats)};
  // A closed chunk without ordinary keys has no landmark; its record still travels and is written.
  std::fill(records_.begin(), records_.end(), 0.0f);
  transport_.publish();
}

std::int64_t KeptLayer::chunks_of_length(std::int64_t length) const {
  return (length + shape_.problem.chunk_size - 1) / shape_.problem.chunk_size;
}

std::vector<TokenId> KeptLayer::place(std::span<const std::int64_t> sequences) const {
  std::vector<std::int64_t> lengths = lengths_;
  std::vector<TokenId> tokens;
  tokens.reserve(sequences.size());
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    const std::int64_t sequence = sequences[row];
    if (sequence < 0 || sequence >= this->sequences()) {
      fail_bad_input(
          fmt::format("row {} continues sequence {}; sequences are 0 to {}", row, sequence, this->sequences() - 1));
    }
    std::int64_t& length = lengths[size(sequence)];
    if (length == capacity(sequence)) {
      fail_bad_input(fmt::format("row {} continues sequence {}, which is full at {} tokens", row, sequence, length));
    }
    tokens.push_back(places_[size(sequence)].first_token + length++);
  }
  return tokens;
}

KeptLayer::RawChunk& KeptLayer::raw_chunk(ChunkId chunk) {
  RawChunk& raw = raw_[chunk];
  // Slots that were not written yet are never keys, but quantisers look at every slot.
  raw.resize(size(shape_.problem.kv_heads * BlockShape::of(shape_.problem).bytes()), std::byte{0});
  return raw;
}

void KeptLayer::store(TokenId token, std::int64_t row, const NewTokens& rows) {
  const BlockShape block = BlockShape::of(shape_.problem);
  const ChunkId chunk = grid_.chunk_of(token);
  const std::int64_t slot = token - grid_.tokens_of(chunk).begin;
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
    const ChunkId chunk = grid_.chunk_of(token);
    const Range<TokenId> slots = grid_.tokens_of(chunk);
    if (owns(chunk)) store(token, row, rows);
    if (slots.size() == shape_.problem.chunk_size && token + 1 == slots.end) {
      closed.push_back(chunk);
      if (owns(chunk)) close(chunk, rows.retrieval_queries.slice(row, row + 1));
    }
    ++lengths_[size(rows.sequences[size(row)])];
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
    kernels::build_landmarks(shape_.problem, shape_.policy.scorer, grid_, {&chunk, 1}, landmark_query, closing_,
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
  std::vector<std::vector<ChunkId>> chunks_of(size(layout_.ranks()));
  for (const ChunkId chunk : closed) chunks_of[size(layout_.owner(chunk).value())].push_back(chunk);
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
  return blocks_.subspan(size(layout_.slot(chunk) * bytes), size(bytes));
}

std::span<const std::byte> KeptLayer::kept_block(ChunkId chunk, std::int64_t kv_head) const {
  return kept_chunk(chunk).subspan(size(kv_head * codec_.encoded_bytes()), size(codec_.encoded_bytes()));
}

std::span<float> KeptLayer::record_place(ChunkId chunk) const {
  const std::int64_t floats = landmark_shape_.record_floats();
  return records_.subspan(size(layout_.slot(chunk) * floats), size(floats));
}

std::span<const float> KeptLayer::record(ChunkId chunk) const { return record_place(chunk); }

std::vector<ChunkId> KeptLayer::own_landmarks() const {
  std::vector<ChunkId> chunks = layout_.chunks_of(rank_);
  std::erase_if(chunks, [&](ChunkId chunk) { return !grid_.has_landmark(chunk); });
  return chunks;
}

void KeptLayer::pack_landmark(ChunkId chunk) {
  const std::vector<ChunkId>& chunks = landmarks_.chunks();
  const auto at = std::lower_bound(chunks.begin(), chunks.end(), chunk);
  if (at != chunks.end() && *at == chunk) landmarks_.set(at - chunks.begin(), record(chunk));
}

void KeptLayer::load(const kvstore::Snapshot& snapshot) {
  const std::vector<std::int64_t> kept = starts_of(snapshot.manifest().problem);
  require(kept.size() == places_.size() + 1, "a layer grows from a snapshot of as many sequences");
  std::vector<ChunkId> closed;
  agree(communicator_, "load the snapshot", [&] {
    ChunkId next(0);
    for (std::size_t s = 0; s < places_.size(); ++s) {
      lengths_[s] = kept[s + 1] - kept[s];
      const std::int64_t full = lengths_[s] / shape_.problem.chunk_size;
      for (std::int64_t n = 0; n < chunks_of_length(lengths_[s]); ++n, ++next) {
        const ChunkId chunk = places_[s].first_chunk + n;
        if (n < full) closed.push_back(chunk);
        if (!owns(chunk)) continue;
        load_chunk(snapshot, next, chunk, n < full);
        if (n < full) pack_landmark(chunk);
      }
    }
  });
  transport_.publish();
  share_checksums("share the checksums of the snapshot", closed);
}

void KeptLayer::load_chunk(const kvstore::Snapshot& snapshot, ChunkId kept, ChunkId chunk, bool closed) {
  if (!closed) return snapshot.read(kept, raw_chunk(chunk), {});
  const std::span<float> landmark = snapshot.has_landmark(kept) ? record_place(chunk) : std::span<float>();
  if (snapshot.manifest().format == shape_.format) return snapshot.read(kept, kept_chunk(chunk), landmark);
  const BlockShape block = BlockShape::of(shape_.problem);
  const kvstore::BlockCodec old(snapshot.manifest().format, block);
  std::vector<std::byte> encoded(size(shape_.problem.kv_heads * old.encoded_bytes()));
  std::vector<std::byte> decoded(size(block.bytes()));
  snapshot.read(kept, encoded, landmark);
  for (std::int64_t kv_head = 0; kv_head < shape_.problem.kv_heads; ++kv_head) {
    old.decode(std::span(encoded).subspan(size(kv_head * old.encoded_bytes()), size(old.encoded_bytes())), decoded);
    codec_.encode(decoded,
                  kept_chunk(chunk).subspan(size(kv_head * codec_.encoded_bytes()), size(codec_.encoded_bytes())));
  }
}

kvstore::SnapshotContents KeptLayer::contents() const {
  kvstore::SnapshotContents contents{shape_.layer, shape_.problem, shape_.policy, shape_.format, {}, {}};
  contents.problem.cu_seqlens = {0};
  ChunkId next(0);
  for (std::size_t s = 0; s < places_.size(); ++s) {
    contents.problem.cu_seqlens.push_back(contents.problem.cu_seqlens.back() + lengths_[s]);
    for (std::int64_t n = 0; n < chunks_of_length(lengths_[s]); ++n, ++next) {
      const ChunkId chunk = places_[s].first_chunk + n;
      if (!owns(chunk)) continue;
      const bool closed = tags_.knows(chunk);
      const std::span<const std::byte> blocks = closed ? kept_chunk(chunk) : std::span(raw_.at(chunk));
      const bool has_record = closed && shape_.policy.selects() && grid_.has_landmark(chunk);
      contents.chunks.push_back({next, closed, blocks, has_record ? record(chunk) : std::span<const float>()});
    }
  }
  contents.problem.tokens = contents.problem.cu_seqlens.back();
  return contents;
}

}  // namespace ringmark::runtime
