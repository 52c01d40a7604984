// Prefill of one layer: every query of this rank attends its window exactly and its global top-K chunks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "core/problem.h"
#include "kernels/positions/encoding.h"
#include "kernels/select_chunks.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"
#include "runtime/layer_shard.h"
#include "runtime/merge_strategy.h"
#include "runtime/progress_sink.h"
#include "runtime/stage_clock.h"

namespace ringmark::runtime {

// What a finished layer leaves on this rank: all its chunks, ascending. Valid while the call that hands it over lasts.
struct PrefillState {
  const partition::SequenceGrid& grid;
  std::span<const ChunkId> chunks;
  std::span<const std::byte> blocks;    // [chunks, Hkv] blocks
  std::span<const float> records;       // [chunks] landmark records; those of chunks without a landmark mean nothing
  const kernels::Selection& selection;  // [rows] what the rows of this rank chose
};

// How far a rank is with its rows, which are in the order of the layout.
struct RowsDone {
  std::int64_t windowed = 0;  // rows before it have out and lse of their window,
  std::int64_t selected = 0;  // no more than these their chunks,
  std::int64_t attended = 0;  // no more than these their final out and lse
  double seconds = 0.0;       // that it took, over all runs
};

struct PrefillOptions {
  Merge merge = Merge::kAuto;
  std::int64_t fetch_budget = std::int64_t{64} << 20;  // bytes of received blocks held at once
  std::int64_t table_budget = std::int64_t{1} << 30;   // gathered landmark table, for Merge::kAuto
  int threads = 1;
  Trace* trace = nullptr;         // where spans of the stages go; may be null
  std::int64_t tile_rows = 4096;  // rows between two looks at `stop`, at most
  // Once it is true it stays true: this rank leaves the rest of its rows undone. Peers that are not told to stop do so
  // when they meet this one: after the window or at the end of the layer, under the `scores` merge within a round.
  std::function<bool()> stop = [] { return false; };
  // By what queries and keys were rotated, each at its slot in its document; only LandmarkPositions::kStingy asks.
  kernels::PositionEncoding positions = {};
  // Brings what was computed before: the blocks [Hkv][block] and the landmark record, empty where there is none, of a
  // chunk of this rank that the layout has left out. Not called for others; may throw Error.
  std::function<void(ChunkId chunk, std::span<std::byte> blocks, std::span<float> record)> load = {};
  // Called once on every rank when all rows of all ranks are done, before the memory goes; may be collective, may be
  // empty.
  std::function<void(const PrefillState&)> keep = {};
};

struct PrefillResult {
  std::vector<float> out;          // [rows, H, d]
  std::vector<float> lse;          // [rows, H] natural log of the normaliser; with sink logits unless stopped
  kernels::Selection selection;    // [rows, choosers, K]
  Merge merge = Merge::kAuto;      // what was used
  std::int64_t bytes_fetched = 0;  // K and V bytes this rank received: window halo and chosen blocks
  std::int64_t bytes_merged = 0;   // landmark tables, or visiting queries, score lists and chosen records
  StageClock clock;                // landmarks, window, select, fetch (time not hidden by work), attend
  RowsDone done;
  bool stopped = false;  // on every rank, when rows of any are left
};

// Bytes that a rank with so many chunks exposes to its peers: blocks and landmark records.
std::int64_t exposed_bytes(const AttentionProblem& problem, const AttentionPolicy& policy, std::int64_t chunks);

// Collective. `shard` holds the rows of this rank in the order of `layout`; its K and V are moved into the block store
// and released. `begun` is what an earlier run of the same layer on the same layout has left on this rank: its rows
// done, out and lse of at least `done.windowed` rows, the selection of all rows unless none was selected. Throws
// Error(kBadInput) for stingy landmark positions without a rotation, Error(kPeer) when a peer misses a deadline.
PrefillResult prefill(comm::Communicator& communicator, comm::BlockTransport& transport,
                      const AttentionProblem& problem, const AttentionPolicy& policy, const partition::Layout& layout,
                      LayerShard& shard, const PrefillOptions& options, ProgressSink& progress,
                      PrefillResult begun = {});

}  // namespace ringmark::runtime
