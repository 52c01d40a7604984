// The global choice: merges candidate lists into one selection per (query, chooser) by the group rank
//     rank(c) = max over heads h of the chooser of [ s_ihc - logaddexp(lse_window_ih, lse of ALL eligible chunks s_ih.)
//     ].
// The order of chunks inside one head does not depend on the normaliser, so the union of the heads' lists holds the
// answer. Source: docs/numerics.md, "Group rank".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "kernels/score_chunks.h"

namespace ringmark::kernels {

// Chosen chunks per (row, chooser), ids ascending, -1 in the slots left over. A chooser is a run of query heads that
// agree: AttentionPolicy::choosers.
struct Selection {
  std::int64_t rows = 0;
  std::int64_t choosers = 0;
  std::int64_t topk = 0;
  std::vector<std::int32_t> chunks;  // [rows, choosers, topk]

  Selection() = default;
  Selection(std::int64_t row_count, std::int64_t chooser_count, std::int64_t k)
      : rows(row_count),
        choosers(chooser_count),
        topk(k),
        chunks(static_cast<std::size_t>(row_count * chooser_count * k), -1) {}

  std::span<std::int32_t> slots(std::int64_t row, std::int64_t chooser) {
    return {chunks.data() + (row * choosers + chooser) * topk, static_cast<std::size_t>(topk)};
  }
  std::span<const std::int32_t> slots(std::int64_t row, std::int64_t chooser) const {
    return {chunks.data() + (row * choosers + chooser) * topk, static_cast<std::size_t>(topk)};
  }
  // Only the used slots.
  std::span<const std::int32_t> chosen(std::int64_t row, std::int64_t chooser) const;
};

// Merges the lists of disjoint sets of landmarks (one part a rank, same rows and heads in all) for `rows` rows, and
// writes them at `first_row` of `selection`, whose choosers divide the heads of the lists. lse_window [rows, H], or
// empty: the window has no share in the normaliser (Scorer::kLandmark). The result does not depend on the number or
// order of the parts. With one head a chooser the order of its scores is the group rank, and neither sums nor
// lse_window are looked at.
void select_chunks(std::span<const CandidateLists> parts, std::span<const float> lse_window, std::int64_t first_row,
                   Selection& selection, int threads);

// Order-independent digest of a selection over all its rows: sum modulo 2^64 of a hash of
// (token, chooser, chosen chunks). Digests of the shards of one sequence add up to the digest of the sequence.
std::uint64_t selection_digest(const Selection& selection, std::span<const TokenId> tokens);

}  // namespace ringmark::kernels
