// The global choice: merges candidate lists into one selection per (query, kv head) by the group rank
//     rank(c) = max over heads h of the group of [ s_ihc - logaddexp(lse_window_ih, lse of ALL eligible chunks s_ih.)
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

// Chosen chunks per (row, kv head), ids ascending, -1 in the slots left over.
struct Selection {
  std::int64_t rows = 0;
  std::int64_t kv_heads = 0;
  std::int64_t topk = 0;
  std::vector<std::int32_t> chunks;  // [rows, kv_heads, topk]

  Selection() = default;
  Selection(std::int64_t row_count, std::int64_t kv_head_count, std::int64_t k)
      : rows(row_count),
        kv_heads(kv_head_count),
        topk(k),
        chunks(static_cast<std::size_t>(row_count * kv_head_count * k), -1) {}

  std::span<std::int32_t> slots(std::int64_t row, std::int64_t kv_head) {
    return {chunks.data() + (row * kv_heads + kv_head) * topk, static_cast<std::size_t>(topk)};
  }
  std::span<const std::int32_t> slots(std::int64_t row, std::int64_t kv_head) const {
    return {chunks.data() + (row * kv_heads + kv_head) * topk, static_cast<std::size_t>(topk)};
  }
  // Only the used slots.
  std::span<const std::int32_t> chosen(std::int64_t row, std::int64_t kv_head) const;
};

// Merges the lists of disjoint sets of landmarks (one part a rank, same rows and heads in all) for `rows` rows, and
// writes them at `first_row` of `selection`. lse_window [rows, H]. The result does not depend on the number or order of
// the parts. With one head a group the order of its scores is the group rank, and the sums are not looked at.
void select_chunks(std::span<const CandidateLists> parts, std::span<const float> lse_window, std::int64_t first_row,
                   Selection& selection, int threads);

// Order-independent digest of a selection over all its rows: sum modulo 2^64 of a hash of
// (token, kv head, chosen chunks). Digests of the shards of one sequence add up to the digest of the sequence.
std::uint64_t selection_digest(const Selection& selection, std::span<const TokenId> tokens);

}  // namespace ringmark::kernels
