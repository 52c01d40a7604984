// Rotation of queries and keys by their positions.
//
// Pair (a, b) of a row at position n becomes (a cos - b sin, a sin + b cos) of the angle n w_j. The angle is counted in
// turns: n w_j / 2 pi in fp64, of which the whole turns fall away. Up to kMaxPosition cos and sin are right to 2e-7;
// fp32 angles would be wrong by 0.05 at a million. Elements are widened to fp32, turned by fused multiply-adds and
// rounded once.
//
// Rotations of one encoding add up: rotate by m, then by n, is rotate by m + n. So the landmark of a chunk moves to
// another base position by one rotation of its key, and its bias stays: positions shifted alike leave the softmax over
// the chunk's keys as it was. A landmark of keys that were not rotated is another thing, and cannot be made up for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/tensor.h"
#include "kernels/positions/encoding.h"

namespace ringmark::kernels {

// The two sides of a score. They differ for xPos only; retrieval and landmark queries are queries.
enum class Side { kQuery, kKey };

// encoding   validated for the head_dim of the rows
// positions  [rows], in any order; the same for all heads of a row. A position says nothing about where the row stands.
// out        [rows, heads, head_dim] like `rows`; may be the same memory. Elements that are not turned (behind
//            rotary_dim, or of pairs with frequency 0) are the same bits.
// A row's result depends on its own elements and position only. Throws Error(kBadInput) as check_positions does.
void rotate(const PositionEncoding& encoding, Side side, const RowsView& rows, std::span<const std::int64_t> positions,
            std::span<std::byte> out, int threads);

}  // namespace ringmark::kernels
