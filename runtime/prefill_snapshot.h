// The state that a prefill leaves, written as a snapshot (kvstore/snapshot.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "comm/communicator.h"
#include "core/problem.h"
#include "kvstore/block_codec.h"
#include "kvstore/prefix_chains.h"
#include "runtime/prefill.h"

namespace ringmark::runtime {

struct SnapshotTarget {
  std::filesystem::path folder;
  kvstore::BlockFormat format = kvstore::BlockFormat::kAsInput;
  kvstore::KnownPrefixes prefixes = {};  // needed on rank 0 only
};

struct PrefillSnapshot {
  std::uint64_t generation = 0;
  kvstore::BlockError error;  // of kept blocks, over all ranks
};

// Bytes that a rank with so many chunks holds beside its blocks while it writes.
std::int64_t snapshot_buffer_bytes(const AttentionProblem& problem, kvstore::BlockFormat format, std::int64_t chunks);

// Collective. Full chunks are kept in the target's format, others as they are.
PrefillSnapshot write_prefill_snapshot(comm::Communicator& communicator, const SnapshotTarget& target,
                                       const AttentionProblem& problem, const AttentionPolicy& policy,
                                       const PrefillState& state);

}  // namespace ringmark::runtime
