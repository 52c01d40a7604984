// The definition of every result, in fp64, written straight from the formulas of docs/numerics.md. Slow and plain on
// purpose: the fast kernels are checked against it, and `--backend reference` runs it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/select_chunks.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels::reference {

// One layer over the whole sequence, widened to fp64. [tokens, heads, head_dim], row-major.
struct Layer {
  AttentionProblem problem;
  AttentionPolicy policy;
  std::vector<double> q;            // [N, H, d] attention queries
  std::vector<double> retrieval_q;  // [N, H, d] retrieval queries q~; row landmark_slot(c) is the landmark query q'_c
  std::vector<double> k;            // [N, Hkv, d]
  std::vector<double> v;            // [N, Hkv, d]
  std::vector<double> landmark_q = {};  // [chunks, H, d] landmark queries q'_c that are no rows; empty: they are
  std::vector<double> sink_q = {};      // [N, H, d] attends to sinks below the window; empty: q does
};

std::vector<double> widen(const RowsView& rows);

// Summary of one chunk for one query head.
struct Landmark {
  std::vector<double> key;  // k'_c
  double bias = 0.0;        // b'_c
};
// hils, mean and landmark only; the chunk has a landmark.
Landmark landmark_of(const Layer& layer, const partition::SequenceGrid& grid, ChunkId chunk, std::int64_t head);

// Result for a list of queries; rows in the order of the list. Sink logits are in out and lse alone.
struct Result {
  std::vector<double> out;         // [rows, H, d]
  std::vector<double> lse;         // [rows, H]
  std::vector<double> lse_window;  // [rows, H]
  Selection selection;             // [rows, choosers, K]
  std::vector<double> margin;      // [rows, choosers] gap between the K-th and the next group rank; +inf without a next
};
Result attend(const Layer& layer, std::span<const TokenId> queries, int threads);

}  // namespace ringmark::kernels::reference
