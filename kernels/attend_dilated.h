// Dilated attention of one pair (segment, rate) over keys that arrive stretch by stretch: the softmax of every row is
// kept open between them (kernels/attend_causal.h).
#pragma once

#include <span>

#include "core/ids.h"
#include "kernels/attend_causal.h"
#include "kernels/block_table.h"
#include "kernels/dilation.h"

namespace ringmark::kernels {

// Every row attends, for the heads for which it takes part, to the keys up to itself of those of `stretches` that
// belong to its segment. `stretches` are some of stretches_of(), ascending; the blocks of their tokens must be in
// `blocks`, from the first token to the rows' last. Tokens of `queries` ascend; its groups hold all heads of the layer.
//
// Keys and rows that take part are packed: a head has 1/rate of the rows, and each of them 1/rate of the keys. A row's
// result depends on which stretches it was given and in which order, on nothing else.
void attend_dilated(const CausalQueries& queries, const Dilation& dilation, std::span<const Range<TokenId>> stretches,
                    const BlockTable& blocks, const OpenSoftmax& softmax, int threads);

}  // namespace ringmark::kernels
