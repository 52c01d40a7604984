// The planner of a decode step: who attends which chosen block. Every rank knows the whole selection of the step, so
// both sides of a pair derive the same lists. Pure: it can be tested without ranks and memory.
//
// A row's *home* is the owner of its chunk. Of every block that rows of a home chose and another rank owns, the home
// either *pulls* the block, or lets the owner *push* what its heads get from it: one partial (out, lse) a row and kv
// head, whatever the number of blocks behind it. The attention itself costs the same on either side.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "kernels/select_chunks.h"
#include "partition/layout.h"
#include "runtime/fetch_plan.h"

namespace ringmark::runtime {

enum class Exchange {
  kAuto,  // the cost model decides, block by block
  kPull,
  kPush,
};

constexpr std::string_view name_of(Exchange exchange) {
  switch (exchange) {
    case Exchange::kAuto: return "auto";
    case Exchange::kPull: return "pull";
    case Exchange::kPush: return "push";
  }
  return "?";
}

// Seconds that one more of each adds to a step.
struct ExchangeCosts {
  double pull = 0.0;  // a block
  double push = 0.0;  // a partial: a row and kv head of one owner
};

// A block and the rows that chose it, ascending.
struct BlockDemand {
  BlockId block;
  std::vector<std::int64_t> rows;
};
using Demands = std::vector<BlockDemand>;  // blocks ascending

// What the rows of `home` chose, by owner; and what the rows of every home chose of `owner`, by home. homes: by row.
std::vector<Demands> demands_of_home(const kernels::Selection& selection, std::span<const RankId> homes,
                                     const partition::Layout& layout, RankId home);
std::vector<Demands> demands_on_owner(const kernels::Selection& selection, std::span<const RankId> homes,
                                      const partition::Layout& layout, RankId owner);

// Decides for one home. A block that is here costs nothing. Of another it is not known how often it will be wanted
// again, so the home rents before it buys: it lets the owner push until what that has cost reaches the price of a pull,
// which never costs more than twice the best decision in hindsight. Many rows of one step may pay the price at once.
class PushPlanner {
 public:
  PushPlanner(Exchange exchange, const ExchangeCosts& costs) : exchange_(exchange), costs_(costs) {}

  // By demand of one owner: whether it is pushed.
  std::vector<bool> plan(const Demands& demands, const std::function<bool(const BlockId&)>& is_here);

 private:
  Exchange exchange_;
  ExchangeCosts costs_;
  std::map<BlockId, double> paid_;  // seconds of pushes since the block was last pulled
};

// The pushed ones of the demands, ascending.
std::vector<BlockId> pushed_blocks(const Demands& demands, const std::vector<bool>& pushed);

// (row, kv head) pairs that have at least one pushed block, ascending: the partials that travel.
struct PartialId {
  std::int64_t row = 0;
  std::int64_t kv_head = 0;
  auto operator<=>(const PartialId&) const = default;
};
std::vector<PartialId> partials_of(const Demands& demands, const std::vector<bool>& pushed);

// The part of a selection whose blocks `keeps`, of each (row, block).
kernels::Selection part_of(const kernels::Selection& selection,
                           const std::function<bool(std::int64_t row, const BlockId& block)>& keeps);

// Rows whose blocks are held together. A row is never split.
struct HeldRows {
  RowRange rows;
  std::vector<BlockId> needs;  // ascending, each once
};
// Cuts `rows` so that what `counts` of each part's needs is at most `capacity`; one row alone always fits.
// `needs` appends the blocks of a row, in any order.
std::vector<HeldRows> cut_rows(RowRange rows,
                               const std::function<void(std::int64_t row, std::vector<BlockId>& blocks)>& needs,
                               const std::function<bool(const BlockId&)>& counts, std::int64_t capacity);

}  // namespace ringmark::runtime
