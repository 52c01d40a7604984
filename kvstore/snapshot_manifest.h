// The manifest of a snapshot: one JSON file a generation, written last, without which the generation does not exist.
// Its last field is the checksum of the text in front of it, so that no flipped bit passes for another number.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem.h"
#include "kvstore/block_codec.h"
#include "kvstore/prefix_chains.h"

namespace ringmark::kvstore {

inline constexpr std::uint64_t kMaxGeneration = 999'999;                    // names have six digits
inline constexpr std::int64_t kMaxManifestBytes = std::int64_t{256} << 20;  // 2^21 chunks with prefix hashes fit

struct SnapshotShard {
  std::string file;  // a plain name inside the generation's folder
  std::int64_t bytes = 0;
  std::uint32_t checksum = 0;        // of the file's index: its header and its tables of checksums
  std::vector<std::int64_t> chunks;  // ids in the snapshot's own grid, ascending, in the order of the shard's rows
};

struct SnapshotManifest {
  std::uint64_t generation = 0;
  std::int64_t layer = 0;
  AttentionProblem problem;  // tokens and cu_seqlens: what is kept
  AttentionPolicy policy;
  BlockFormat format = BlockFormat::kAsInput;
  KnownPrefixes prefixes;
  std::vector<SnapshotShard> shards;
};

std::string manifest_text(const SnapshotManifest& manifest);
// Throws Error(kBadInput) naming `path`, the field, the value and the limit, for whatever is not a whole, consistent
// manifest: more than kMaxManifestBytes, unknown version, wrong types, numbers past their limits, file names that are
// no plain names, chunks that are missing, doubled or outside of the grid, prefixes that fit no sequence, a checksum
// that is not that of the text.
SnapshotManifest parse_manifest(std::string_view text, const std::string& path);

}  // namespace ringmark::kvstore
