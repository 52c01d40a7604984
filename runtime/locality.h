// How much neighbouring queries agree: the union ratio r = (chunks chosen by a tile of M queries, counted once) over
// (chunks chosen by one query), for tiles of 16, 32 and 64 consecutive tokens. It decides what a tile costs.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "comm/communicator.h"
#include "core/ids.h"
#include "kernels/select_chunks.h"

namespace ringmark::runtime {

inline constexpr std::array<std::int64_t, 3> kUnionTiles = {16, 32, 64};

// Collective: over all ranks' rows. A tile is tokens [tM, (t+1)M) as far as one rank holds them. 0 where nothing is
// chosen.
std::array<double, 3> union_ratios(comm::Communicator& communicator, const kernels::Selection& selection,
                                   std::span<const TokenId> tokens);

}  // namespace ringmark::runtime
