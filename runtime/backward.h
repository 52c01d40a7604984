// The backward pass of one layer: gradients of q, k, v and of retrieval and landmark queries from dL/do, with the
// choice of chunks held fixed (docs/numerics.md, "Backward"). Every rank differentiates its own rows; what these do to
// keys and values of other ranks is summed here, block by block, and sent home once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "core/problem.h"
#include "kernels/select_chunks.h"
#include "partition/layout.h"
#include "runtime/layer_shard.h"
#include "runtime/progress_sink.h"
#include "runtime/stage_clock.h"

namespace ringmark::runtime {

struct BackwardOptions {
  std::int64_t fetch_budget = std::int64_t{64} << 20;  // bytes of received blocks held at once
  // Bytes of gradients of keys and values that are on their way, the same on every rank: what stands here of other
  // ranks' blocks, and what they send of this rank's.
  std::int64_t gradient_budget = std::int64_t{256} << 20;
  int threads = 1;
  Trace* trace = nullptr;         // where spans of the stages go; may be null
  std::int64_t tile_chunks = 64;  // chunks between two steps of the progress
};

// What the forward left on this rank, rows in the order of the layout.
struct ForwardRows {
  std::span<const float> out;           // [rows, H, d]
  std::span<const float> lse;           // [rows, H]
  const kernels::Selection& selection;  // [rows, Hkv, K]; K = 0 where nothing is selected
};

struct BackwardResult {
  std::vector<float> query_gradient;  // [rows, H, d] dL/dq; of q~ and q'_c too where the shard has no retrieval queries
  // [rows, H, d] dL/dq~, in the last rows of chunks with that of the landmark query; empty where the shard has none or
  // the policy does not score with them.
  std::vector<float> retrieval_gradient;
  std::vector<float> key_gradient;    // [rows, Hkv, d]
  std::vector<float> value_gradient;  // [rows, Hkv, d]
  std::int64_t bytes_fetched = 0;     // K and V blocks and landmark records this rank received
  std::int64_t bytes_gradients = 0;   // gradients of its blocks that this rank received
  std::int64_t stretches = 0;         // parts of the sequence after each of which gradients went home
  StageClock clock;                   // landmarks, plan, fetch (time not hidden by work), attend, exchange, finish
};

// Throws Error(kBadInput) naming what of the problem or the policy has no backward pass: oracle, landmark and quest
// scorers, choices of other than a group, union fusion, windows that begin inside a chunk, caps, ALiBi, sink logits.
void check_backward(const AttentionProblem& problem, const AttentionPolicy& policy);

// Whether scores come from retrieval queries of the shard's own, whose gradient is then not that of q.
bool scores_with_own_queries(const AttentionPolicy& policy, const LayerShard& shard);

// Bytes of the records in which gradients of a chunk's keys and values are gathered.
std::int64_t gradient_bytes(const AttentionProblem& problem, const AttentionPolicy& policy);
// Chunks whose gradients are gathered before they go home: so many that `budget` holds a rank's, its peers' and the
// sums.
std::int64_t stretch_chunks(const AttentionProblem& problem, const AttentionPolicy& policy, int ranks,
                            std::int64_t budget);

// Collective. `shard` and `forward` hold the rows of this rank in the order of `layout`; K and V of the shard are moved
// into blocks and released. out_gradient [rows, H, d]. The transport has nothing exposed. Landmark queries are those of
// the slots: the shard brings none of its own. The gradients of q do not depend on layout, rank count or threads; where
// ranks add to one sum, its last bits depend on who had which rows. Throws Error(kPeer) when a peer misses a deadline.
BackwardResult backward(comm::Communicator& communicator, comm::BlockTransport& transport,
                        const AttentionProblem& problem, const AttentionPolicy& policy, const partition::Layout& layout,
                        LayerShard& shard, const ForwardRows& forward, std::span<const float> out_gradient,
                        const BackwardOptions& options, ProgressSink& progress);

}  // namespace ringmark::runtime
