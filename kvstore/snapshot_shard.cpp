#include "kvstore/snapshot_shard.h"

#include <fmt/format.h>

#include "comm/copy_bytes.h"
#include "core/error.h"
#include "kernels/landmarks.h"
#include "kvstore/block_codec.h"
#include "kvstore/crc32c.h"
#include "kvstore/safetensors_file.h"

namespace ringmark::kvstore {
namespace {

// The bytes of a file up to the end of its tables of checksums.
std::vector<std::byte> read_index(const Descriptor& file, const std::string& path, const SafetensorsHeader& header,
                                  const ShardShape& shape) {
  const std::int64_t tables = shape.checksums() * static_cast<std::int64_t>(sizeof(std::uint32_t));
  std::vector<std::byte> index(static_cast<std::size_t>(header.data_offset + tables));
  read_range(file, 0, index, path + ": index");
  return index;
}

void check_tensors(const std::string& path, const SafetensorsHeader& header, const ShardShape& shape) {
  const std::vector<TensorToWrite> expected = shape.tensors();
  for (const TensorToWrite& tensor : expected) {
    const StoredTensor* const found = header.find(tensor.name);
    if (found == nullptr || found->dtype != tensor.dtype || found->shape != tensor.shape) {
      fail_bad_input(fmt::format("{}: {} is not there as the manifest has it", path, quoted_tensor(tensor.name)));
    }
  }
  if (header.tensors.size() != expected.size()) {
    fail_bad_input(fmt::format("{}: has {} tensors, not {}", path, header.tensors.size(), expected.size()));
  }
}

}  // namespace

ShardShape ShardShape::of(const AttentionProblem& problem, const AttentionPolicy& policy, BlockFormat format) {
  policy.expect_usual_choice("a snapshot");
  const auto block = kernels::BlockShape::of(problem);
  ShardShape shape;
  shape.kv_heads = problem.kv_heads;
  shape.closed_bytes = BlockCodec(format, block).encoded_bytes();
  shape.growing_bytes = block.bytes();
  shape.record_floats = kernels::LandmarkShape::of(problem, policy.scorer).record_floats();
  return shape;
}

void ShardShape::add(const partition::SequenceGrid& grid, const AttentionPolicy& policy, ChunkId chunk) {
  const bool full = grid.tokens_of(chunk).size() == grid.chunk_size();
  ++(full ? closed : growing);
  if (policy.selects() && grid.has_landmark(chunk)) ++landmarks;
}

std::int64_t ShardShape::bytes() const {
  return (closed * closed_bytes + growing * growing_bytes) * kv_heads + (landmarks * record_floats + checksums()) * 4;
}

// The tables first: one read has all of them. Then what needs alignment.
std::vector<TensorToWrite> ShardShape::tensors() const {
  return {{kBlockChecksums, "U32", {closed, kv_heads}},       {kTailChecksums, "U32", {growing, kv_heads}},
          {kLandmarkChecksums, "U32", {landmarks}},           {kLandmarks, "F32", {landmarks, record_floats}},
          {kTails, "U8", {growing, kv_heads, growing_bytes}}, {kBlocks, "U8", {closed, kv_heads, closed_bytes}}};
}

std::uint32_t index_checksum(const std::string& path, const ShardShape& shape) {
  const Descriptor file = open_for_reading(path);
  return crc32c(read_index(file, path, read_safetensors_header(file, path), shape));
}

SnapshotShardFile::SnapshotShardFile(const std::string& path, const ShardShape& shape, const SnapshotShard& entry)
    : path_(path), shape_(shape), file_(open_for_reading(path)) {
  if (const std::int64_t bytes = regular_file_bytes(file_, path_); bytes != entry.bytes) {
    fail_bad_input(fmt::format("{}: has {} bytes, the manifest says {}", path_, bytes, entry.bytes));
  }
  header_ = read_safetensors_header(file_, path_);
  check_tensors(path_, header_, shape_);
  const std::vector<std::byte> index = read_index(file_, path_, header_, shape_);
  if (const std::uint32_t found = crc32c(index); found != entry.checksum) {
    fail_bad_input(
        fmt::format("{}: checksum of its header and tables is {:08x}, the manifest says {:08x}: the file is "
                    "damaged or another one",
                    path_, found, entry.checksum));
  }
  checksums_.resize(static_cast<std::size_t>(shape_.checksums()));
  comm::copy_bytes(std::span(index).subspan(static_cast<std::size_t>(header_.data_offset)),
                   std::as_writable_bytes(std::span(checksums_)));
}

void SnapshotShardFile::read(ChunkId chunk, const ShardPlace& place, std::span<std::byte> blocks,
                             std::span<float> landmark) const {
  const auto block_bytes = static_cast<std::size_t>(place.closed ? shape_.closed_bytes : shape_.growing_bytes);
  require(blocks.size() == block_bytes * static_cast<std::size_t>(shape_.kv_heads),
          "blocks are read into exactly their size");
  read_row(place.closed ? kBlocks : kTails, place.row, blocks);
  const std::int64_t first = ((place.closed ? 0 : shape_.closed) + place.row) * shape_.kv_heads;
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    check(blocks.subspan(static_cast<std::size_t>(head) * block_bytes, block_bytes), first + head,
          fmt::format("chunk {}, kv head {}: its block", chunk.value(), head));
  }
  if (landmark.empty()) return;
  require(place.landmark_row >= 0 && static_cast<std::int64_t>(landmark.size()) == shape_.record_floats,
          "a landmark is read where there is one, into exactly its size");
  read_row(kLandmarks, place.landmark_row, std::as_writable_bytes(landmark));
  check(std::as_bytes(landmark), (shape_.closed + shape_.growing) * shape_.kv_heads + place.landmark_row,
        fmt::format("chunk {}: its landmark", chunk.value()));
}

void SnapshotShardFile::read_row(const char* tensor, std::int64_t row, std::span<std::byte> out) const {
  const StoredTensor* const stored = header_.find(tensor);
  read_range(file_, header_.data_offset + stored->begin + row * stored->row_bytes(), out,
             fmt::format("{}: {}", path_, quoted_tensor(tensor)));
}

void SnapshotShardFile::check(std::span<const std::byte> bytes, std::int64_t checksum, const std::string& what) const {
  const std::uint32_t found = crc32c(bytes);
  const std::uint32_t recorded = checksums_[static_cast<std::size_t>(checksum)];
  if (found == recorded) return;
  fail_bad_input(
      fmt::format("{}: {} has checksum {:08x}, recorded is {:08x}: the file is damaged", path_, what, found, recorded));
}

}  // namespace ringmark::kvstore
