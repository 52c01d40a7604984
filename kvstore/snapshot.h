// Kept KV on disk: DIR/generation-NNNNNN/shard-RRRRR.safetensors, one a rank, and manifest.json, committed last. A
// generation without its manifest does not exist; the newest complete one counts. Described in docs/formats.md.
//
// A shard holds, for its chunks in order: the closed blocks as they are kept (`blocks` U8 [closed, Hkv, encoded
// bytes]), the blocks of chunks that are still growing, in the layer's precision (`tails`), the landmark records
// (`landmarks` F32), and the checksums of all of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/ids.h"
#include "core/problem.h"
#include "kvstore/block_codec.h"
#include "kvstore/prefix_chains.h"
#include "kvstore/snapshot_manifest.h"

namespace ringmark::kvstore {

// A chunk of the rank that writes. Closed chunks of a layer that selects have a record; growing ones have none.
struct KeptChunk {
  ChunkId chunk;                      // in the grid of the snapshot's problem
  bool closed = false;                // holds chunk_size tokens
  std::span<const std::byte> blocks;  // [Hkv][encoded bytes] when closed, else [Hkv][block bytes]
  std::span<const float> landmark;    // record; empty: none
};

struct SnapshotContents {
  std::int64_t layer = 0;
  AttentionProblem problem;
  AttentionPolicy policy;
  BlockFormat format = BlockFormat::kAsInput;
  KnownPrefixes prefixes;
  std::vector<KeptChunk> chunks;  // of this rank, ascending
};

// Throws Error(kBadInput) naming the field of a layer that a manifest has no place for: read again, the layer would be
// another one.
void check_can_be_kept(const AttentionProblem& problem, const AttentionPolicy& policy);

// What all shards of a snapshot hold together, without headers and manifest. Throws Error(kBadInput) for a layer that
// check_can_be_kept() refuses.
std::int64_t snapshot_bytes(const AttentionProblem& problem, const AttentionPolicy& policy, BlockFormat format);

// Throws Error when so many bytes could not be written into `folder` as things stand: no folder and none to make it in,
// permissions, space. Leaves nothing behind.
void check_snapshot_folder(const std::filesystem::path& folder, std::int64_t bytes);

// Collective. Writes the next generation and removes those before the last two. Nothing is visible before the manifest
// is; whatever fails (disk full, a peer) leaves the earlier generations as they were. Returns the generation. When one
// rank cannot write, all throw its error, which is Error(kEnvironment) with the bytes for a full disk and
// Error(kBadInput) for a folder that cannot be used. What is known of prefixes is what rank 0 says.
std::uint64_t write_snapshot(comm::Communicator& communicator, const std::filesystem::path& folder,
                             const SnapshotContents& contents);

struct VerifiedSnapshot {
  std::int64_t blocks = 0;
  std::int64_t records = 0;
};

class Snapshot {
 public:
  // The newest complete generation. Throws Error(kBadInput) naming the folder, and what the newest lacks, when there is
  // none.
  static Snapshot open(const std::filesystem::path& folder);
  // Collective: the newest generation that is complete for every rank; the same one on all of them.
  static Snapshot open(comm::Communicator& communicator, const std::filesystem::path& folder);
  // Whether open() would take it.
  static bool is_complete(const std::filesystem::path& folder, std::uint64_t generation);
  Snapshot(Snapshot&&) noexcept;
  ~Snapshot();

  const SnapshotManifest& manifest() const;
  // What was wrong with the generations that are newer than this one, newest first.
  const std::vector<std::string>& passed_over() const;
  // Any chunk of any shard. `blocks` as in KeptChunk, of the size that the chunk has; `landmark` has the size of a
  // record or is empty when it is not wanted. Checksums are compared before this returns: Error(kBadInput) naming file,
  // chunk and kv head.
  void read(ChunkId chunk, std::span<std::byte> blocks, std::span<float> landmark) const;
  bool has_landmark(ChunkId chunk) const;
  // Reads and checks everything. Throws the error of the first chunk that is damaged.
  VerifiedSnapshot verify() const;

 private:
  struct Opened;
  explicit Snapshot(std::unique_ptr<Opened> opened);
  std::unique_ptr<Opened> opened_;
};

}  // namespace ringmark::kvstore
