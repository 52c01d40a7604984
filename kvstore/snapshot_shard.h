// One shard file of a snapshot. Its index, which is the safetensors header and the tables of checksums, comes first and
// is covered by the checksum in the manifest; everything behind it is covered by the tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvstore/safetensors_header.h"
#include "kvstore/safetensors_io.h"
#include "kvstore/safetensors_writer.h"
#include "kvstore/snapshot_manifest.h"
#include "partition/sequence_grid.h"

namespace ringmark::kvstore {

inline constexpr const char* kBlockChecksums = "block_checksums";        // U32 [closed, Hkv]
inline constexpr const char* kTailChecksums = "tail_checksums";          // U32 [growing, Hkv]
inline constexpr const char* kLandmarkChecksums = "landmark_checksums";  // U32 [landmarks]
inline constexpr const char* kLandmarks = "landmarks";                   // F32 [landmarks, record]
inline constexpr const char* kTails = "tails";                           // U8 [growing, Hkv, bytes of a block]
inline constexpr const char* kBlocks = "blocks";                         // U8 [closed, Hkv, bytes of an encoded block]

// Sizes of what a shard holds, from the layer and the shard's chunks.
struct ShardShape {
  std::int64_t kv_heads = 0;
  std::int64_t closed_bytes = 0;   // of the block of a closed chunk, encoded
  std::int64_t growing_bytes = 0;  // of the block of a chunk that still grows
  std::int64_t record_floats = 0;
  std::int64_t closed = 0;  // chunks
  std::int64_t growing = 0;
  std::int64_t landmarks = 0;

  // Without chunks.
  static ShardShape of(const AttentionProblem& problem, const AttentionPolicy& policy, BlockFormat format);
  void add(const partition::SequenceGrid& grid, const AttentionPolicy& policy, ChunkId chunk);

  std::int64_t checksums() const { return (closed + growing) * kv_heads + landmarks; }
  std::int64_t bytes() const;                  // of all tensors
  std::vector<TensorToWrite> tensors() const;  // in the order of the file
};

// Where a chunk is in its shard.
struct ShardPlace {
  std::int64_t row = 0;  // of the blocks, or of the tails
  bool closed = false;
  std::int64_t landmark_row = -1;  // none
};

// Of the first bytes of a file, up to the end of its tables.
std::uint32_t index_checksum(const std::string& path, const ShardShape& shape);

class SnapshotShardFile {
 public:
  // Opens the file and compares it with its entry in the manifest. Throws Error(kBadInput) with the path.
  SnapshotShardFile(const std::string& path, const ShardShape& shape, const SnapshotShard& entry);

  // All blocks of a chunk, and its landmark unless the span is empty. Throws Error(kBadInput) naming path, chunk and kv
  // head when a checksum is not the recorded one.
  void read(ChunkId chunk, const ShardPlace& place, std::span<std::byte> blocks, std::span<float> landmark) const;

 private:
  void read_row(const char* tensor, std::int64_t row, std::span<std::byte> out) const;
  void check(std::span<const std::byte> bytes, std::int64_t checksum, const std::string& what) const;

  std::string path_;
  ShardShape shape_;
  Descriptor file_;
  SafetensorsHeader header_;
  std::vector<std::uint32_t> checksums_;  // of blocks, tails, landmarks
};

}  // namespace ringmark::kvstore
