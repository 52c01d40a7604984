#include "runtime/decode_plan.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ringmark::runtime {
namespace {

using kernels::Selection;

// The choosers of a step are the kv heads. Collects the demands between one rank and every other: `peer_of` gives the
// other side, or a rank outside the job for what is not between the two.
template <class PeerOf>
std::vector<Demands> collect(const Selection& selection, int ranks, PeerOf peer_of) {
  std::vector<std::map<BlockId, std::vector<std::int64_t>>> found(static_cast<std::size_t>(ranks));
  for (std::int64_t row = 0; row < selection.rows; ++row) {
    for (std::int64_t kv_head = 0; kv_head < selection.choosers; ++kv_head) {
      for (const std::int32_t chunk : selection.chosen(row, kv_head)) {
        const RankId peer = peer_of(row, ChunkId(chunk));
        if (peer < RankId(0)) continue;
        found[static_cast<std::size_t>(peer.value())][{ChunkId(chunk), kv_head}].push_back(row);
      }
    }
  }
  std::vector<Demands> demands(found.size());
  for (std::size_t peer = 0; peer < found.size(); ++peer) {
    for (auto& [block, rows] : found[peer]) demands[peer].push_back({block, std::move(rows)});
  }
  return demands;
}

constexpr RankId kNobody(-1);

}  // namespace

std::vector<Demands> demands_of_home(const Selection& selection, std::span<const RankId> homes,
                                     const partition::Layout& layout, RankId home) {
  return collect(selection, layout.ranks(), [&](std::int64_t row, ChunkId chunk) {
    const RankId owner = layout.owner(chunk);
    return homes[static_cast<std::size_t>(row)] == home && owner != home ? owner : kNobody;
  });
}

std::vector<Demands> demands_on_owner(const Selection& selection, std::span<const RankId> homes,
                                      const partition::Layout& layout, RankId owner) {
  return collect(selection, layout.ranks(), [&](std::int64_t row, ChunkId chunk) {
    const RankId home = homes[static_cast<std::size_t>(row)];
    return layout.owner(chunk) == owner && home != owner ? home : kNobody;
  });
}

std::vector<bool> PushPlanner::plan(const Demands& demands, const std::function<bool(const BlockId&)>& is_here) {
  std::vector<bool> pushed(demands.size(), exchange_ == Exchange::kPush);
  if (exchange_ != Exchange::kAuto) return pushed;
  std::map<PartialId, std::int64_t> blocks_behind;
  std::vector<bool> here(demands.size());
  for (std::size_t n = 0; n < demands.size(); ++n) {
    here[n] = is_here(demands[n].block);
    if (here[n]) continue;
    for (const std::int64_t row : demands[n].rows) ++blocks_behind[{row, demands[n].block.kv_head}];
  }
  for (std::size_t n = 0; n < demands.size(); ++n) {
    if (here[n]) continue;
    double& paid = paid_[demands[n].block];
    for (const std::int64_t row : demands[n].rows) {
      paid += costs_.push / static_cast<double>(blocks_behind[{row, demands[n].block.kv_head}]);
    }
    pushed[n] = paid < costs_.pull;
    if (!pushed[n]) paid_.erase(demands[n].block);
  }
  return pushed;
}

std::vector<BlockId> pushed_blocks(const Demands& demands, const std::vector<bool>& pushed) {
  std::vector<BlockId> blocks;
  for (std::size_t n = 0; n < demands.size(); ++n) {
    if (pushed[n]) blocks.push_back(demands[n].block);
  }
  return blocks;
}

std::vector<PartialId> partials_of(const Demands& demands, const std::vector<bool>& pushed) {
  std::vector<PartialId> partials;
  for (std::size_t n = 0; n < demands.size(); ++n) {
    if (!pushed[n]) continue;
    for (const std::int64_t row : demands[n].rows) partials.push_back({row, demands[n].block.kv_head});
  }
  std::sort(partials.begin(), partials.end());
  partials.erase(std::unique(partials.begin(), partials.end()), partials.end());
  return partials;
}

Selection part_of(const Selection& selection,
                  const std::function<bool(std::int64_t row, const BlockId& block)>& keeps) {
  Selection part(selection.rows, selection.choosers, selection.topk);
  for (std::int64_t row = 0; row < selection.rows; ++row) {
    for (std::int64_t kv_head = 0; kv_head < selection.choosers; ++kv_head) {
      auto next = part.slots(row, kv_head).begin();
      for (const std::int32_t chunk : selection.chosen(row, kv_head)) {
        if (keeps(row, {ChunkId(chunk), kv_head})) *next++ = chunk;
      }
    }
  }
  return part;
}

std::vector<HeldRows> cut_rows(RowRange rows,
                               const std::function<void(std::int64_t row, std::vector<BlockId>& blocks)>& needs,
                               const std::function<bool(const BlockId&)>& counts, std::int64_t capacity) {
  std::vector<HeldRows> parts;
  std::int64_t held = 0;  // of the last part's needs, those that count
  std::vector<BlockId> of_row, fresh, both;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    of_row.clear();
    needs(row, of_row);
    std::sort(of_row.begin(), of_row.end());
    of_row.erase(std::unique(of_row.begin(), of_row.end()), of_row.end());
    if (!parts.empty()) {
      HeldRows& part = parts.back();
      fresh.clear();
      std::copy_if(of_row.begin(), of_row.end(), std::back_inserter(fresh), [&](const BlockId& block) {
        return !std::binary_search(part.needs.begin(), part.needs.end(), block);
      });
      const std::int64_t more = std::count_if(fresh.begin(), fresh.end(), counts);
      if (held + more <= capacity) {
        held += more;
        part.rows.end = row + 1;
        if (fresh.empty()) continue;  // most rows choose what their neighbours do
        both.clear();
        std::merge(fresh.begin(), fresh.end(), part.needs.begin(), part.needs.end(), std::back_inserter(both));
        std::swap(part.needs, both);
        continue;
      }
    }
    parts.push_back({{row, row + 1}, of_row});
    held = std::count_if(of_row.begin(), of_row.end(), counts);
  }
  return parts;
}

}  // namespace ringmark::runtime
