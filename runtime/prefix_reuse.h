// Which beginnings of an input's documents a snapshot keeps already, by the prefix hashes of their chunks, and whether
// they may be used.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "kernels/block_table.h"
#include "kvstore/block_codec.h"
#include "kvstore/prefix_chains.h"
#include "kvstore/snapshot.h"
#include "runtime/layer_shard.h"

namespace ringmark::runtime {

// What is asked of an input.
struct InputLayer {
  const AttentionProblem& problem;
  const AttentionPolicy& policy;
  std::int64_t layer = 0;
};

// Rows of the input, by runs of their tokens.
using LoadRows = std::function<LayerShard(std::span<const RowRange> tokens)>;

// Throws Error(kBadInput) naming the folder, the first field in which the kept layer is another one, and both values;
// also when the snapshot has no prefix hashes.
void expect_reusable(const std::string& folder, const kvstore::SnapshotManifest& kept, const InputLayer& input);

// What a document begins with: the first tokens of a sequence of a snapshot.
struct KeptStart {
  std::int64_t sequence = 0;
  std::int64_t tokens = 0;  // whole chunks
};

// By document, also of those without tokens: the longest beginning in whole chunks that any sequence of the snapshot
// has too. At least one token is left to compute. prefixes: of the input.
std::vector<KeptStart> match_prefixes(const AttentionProblem& problem, const kvstore::PrefixChains& prefixes,
                                      const kvstore::SnapshotManifest& kept);

// Token ids do not tell one model from another: where blocks are kept as they came, K and V of the last chunk that each
// document would reuse are compared with the input's own. Throws Error(kBadInput) naming both. The documents are shared
// out among `ranks` ranks; `rank` looks at its own.
void check_reused_rows(const std::string& folder, const kvstore::Snapshot& snapshot, const AttentionProblem& problem,
                       std::span<const KeptStart> starts, RankId rank, int ranks, const LoadRows& load);

// The chunks of an input that a snapshot keeps, and their contents.
class ReusedChunks {
 public:
  // The snapshot outlives this.
  ReusedChunks(const kvstore::Snapshot& snapshot, const AttentionProblem& problem, std::span<const KeptStart> starts);

  static std::int64_t bytes_of(const AttentionProblem& problem) {
    return problem.chunks_at_most() * static_cast<std::int64_t>(sizeof(std::optional<ChunkId>));
  }

  // By chunk of the input: to be left out of a layout (partition::leave_out).
  std::vector<bool> chunks() const;
  // PrefillOptions::load of such a chunk. Throws Error(kBadInput) when it is damaged.
  void load(ChunkId chunk, std::span<std::byte> blocks, std::span<float> record) const;

 private:
  const kvstore::Snapshot& snapshot_;
  std::int64_t kv_heads_;
  kernels::BlockShape shape_;
  kvstore::BlockCodec codec_;
  std::vector<std::optional<ChunkId>> kept_;  // by chunk of the input, in the grid of the snapshot
};

}  // namespace ringmark::runtime
