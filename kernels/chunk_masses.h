// Exact softmax mass, chunk by chunk: what of the keys that a query may see its policy attends to. Needs no values and
// writes no output; made for a few sampled queries (runtime/recall.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "kernels/log_sum.h"
#include "kernels/select_chunks.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

// Sums of exp(z_ij) over keys j of one (query, head), with the logit z_ij = a q_i . k_j (capped and biased as the
// problem says). Masses of disjoint chunks add up to the same bits in any order, so they may lie on any ranks.
struct KeyMass {
  LogSum all;   // over the keys [0, i] of the query's document
  LogSum kept;  // of these, over those of the window, the sinks and the chosen chunks

  void add(const KeyMass& other) {
    all.add(other.all);
    kept.add(other.kept);
  }
};

// queries    [rows, H, d] attention queries; tokens [rows] their ids, ascending, none of them twice
// selection  [rows] the chunks that they chose; a selection of topk 0 is none
// chunks     the chunks to look at; their keys must be in `blocks`
// masses     [rows, H], to which those of the listed chunks are added
// What a row gets depends neither on the rows beside it nor on the instruction set. Sink logits are no keys: they are
// in no mass. Throws nothing; shapes are promises.
void add_chunk_masses(const AttentionProblem& problem, const partition::SequenceGrid& grid, const RowsView& queries,
                      std::span<const TokenId> tokens, const Selection& selection, std::span<const ChunkId> chunks,
                      const BlockTable& blocks, std::span<KeyMass> masses, int threads);

}  // namespace ringmark::kernels
