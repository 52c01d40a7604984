// What travels when blocks are pushed: one bit a demanded block from its home to its owner, and the partial results
// back. Sizes follow from the selection and the bits; nothing else is announced.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "core/tensor.h"
#include "runtime/decode_plan.h"

namespace ringmark::runtime {

using Choices = std::vector<std::vector<bool>>;  // by rank, by demand: whether the block is pushed

struct ReceivedChoices {
  Choices pushed;          // by home, in the order of its demands
  std::int64_t bytes = 0;  // received from other ranks
};

// Collective. mine: by owner. on_me: by home.
ReceivedChoices exchange_choices(comm::Communicator& communicator, std::string_view stage, const Choices& mine,
                                 const std::vector<Demands>& on_me);

// Collective: the partials in `from` (out [rows, H, d], lse [rows, H]) go to the homes that `sends` names, by rank;
// those that `receives` names, by rank, are merged into `into` in rank order. Returns the bytes received.
struct PartialRows {
  TensorView<float, 3> out;
  TensorView<float, 2> lse;
};
std::int64_t exchange_partials(comm::Communicator& communicator, std::string_view stage, std::int64_t group,
                               const std::vector<std::vector<PartialId>>& sends, const PartialRows& from,
                               const std::vector<std::vector<PartialId>>& receives, const PartialRows& into);

}  // namespace ringmark::runtime
