// Exact causal attention over chunks that arrive in any order and in any number of calls: the softmax of every row is
// kept open between them.
#pragma once

#include <span>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "kernels/head_group.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

// Rows that attend: `tokens` are their ids; `groups` say which kv head of the block table each query head reads.
struct CausalQueries {
  const AttentionProblem& problem;  // of the layer; heads that attend are those of `groups`
  const partition::SequenceGrid& grid;
  RowsView queries;  // [rows, heads, d]
  std::span<const TokenId> tokens;
  std::span<const HeadGroup> groups;
  std::int64_t first_head = 0;  // the number, in the layer, of head 0 of the queries: ALiBi's slopes go by it
};

// What rows have gathered so far.
struct OpenSoftmax {
  TensorView<float, 3> out;  // [rows, heads, d] sum of e^(score - top) v; contiguous components
  TensorView<float, 2> top;  // [rows, heads] largest score
  TensorView<float, 2> sum;  // [rows, heads] sum of e^(score - top)
};

// Nothing gathered.
void start_softmax(const OpenSoftmax& softmax);

// Every row attends to the keys up to itself of those of `chunks`, ascending, that belong to its document; the blocks
// of those must be in `blocks`. A row's result depends on which chunks it was given and in which order, on nothing
// else: the chunks of its document in ascending order give the bits of attend_window with window >= tokens.
void attend_causal(const CausalQueries& queries, RowRange rows, std::span<const ChunkId> chunks,
                   const BlockTable& blocks, const OpenSoftmax& softmax, int threads);

// out becomes the attention output, top the lse (natural log). A row without keys: out = 0, lse = -inf.
void close_softmax(const OpenSoftmax& softmax);

}  // namespace ringmark::kernels
