// What travels when blocks are pushed: one bit a demanded block from its home to its owner, and the partial results
// back. Sizes follow from the selection and the bits; nothing else is announced.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
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

struct PartialRows {
  TensorView<float, 3> out;  // [rows, H, d]
  TensorView<float, 2> lse;  // [rows, H]
};

// Partials on their way to the homes of their rows.
class PartialExchange {
 public:
  // Collective: the partials in `from` that `sends` names, by rank, are sent; those that `receives` names come. Returns
  // at once.
  PartialExchange(comm::Communicator& communicator, std::string stage, std::int64_t group,
                  const std::vector<std::vector<PartialId>>& sends, const PartialRows& from,
                  const std::vector<std::vector<PartialId>>& receives);

  // Waits, and merges what came into `into`, in rank order. Returns the bytes received.
  std::int64_t merge_into(const PartialRows& into);

 private:
  std::string stage_;
  std::int64_t group_;
  const std::vector<std::vector<PartialId>>& receives_;
  std::vector<std::vector<float>> sent_, received_;  // by rank; a partial: out of the group's heads, then their lse
  std::unique_ptr<comm::StartedExchange> exchange_;
};

}  // namespace ringmark::runtime
