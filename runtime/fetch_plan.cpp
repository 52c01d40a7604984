#include "runtime/fetch_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "kernels/block_table.h"
#include "kvstore/block_store.h"

namespace ringmark::runtime {
namespace {

constexpr std::int64_t kWavesWanted = 8;

using Key = std::int64_t;  // chunk * kv_heads + kv_head

struct Wave {
  RowRange rows;
  std::vector<Key> needs;  // remote blocks, ascending
};

class Planner {
 public:
  Planner(const AttentionProblem& problem, const partition::Layout& layout, RankId rank, std::int64_t budget,
          std::int64_t shortest)
      : problem_(problem),
        layout_(layout),
        rank_(rank),
        block_bytes_(kernels::BlockShape::of(problem).bytes()),
        shortest_(shortest),
        wave_blocks_(budget / block_bytes_ / 2),
        capacity_(2 * wave_blocks_) {}

  FetchPlan plan(RowRange rows, const RowNeeds& needs) {
    const std::vector<Wave> waves = cut_waves(rows, needs);
    for (std::size_t w = 0; w < waves.size(); ++w) {
      for (const Key key : waves[w].needs) uses_[key].push_back(w);
    }
    for (std::size_t w = 0; w < waves.size(); ++w) place(waves, w);
    plan_.slots = static_cast<std::int64_t>(slot_owner_.size());
    return std::move(plan_);
  }

 private:
  Key key_of(BlockId block) const { return block.chunk.value() * problem_.kv_heads + block.kv_head; }
  BlockId block_of(Key key) const { return {ChunkId(key / problem_.kv_heads), key % problem_.kv_heads}; }

  // Rows in order; a wave ends before the row that would make it need more than half the arena.
  std::vector<Wave> cut_waves(RowRange rows, const RowNeeds& needs) const {
    const std::int64_t rows_at_most = rows_of_wave(rows.size(), shortest_);
    std::vector<Wave> waves;
    std::unordered_set<Key> wave;
    std::vector<BlockId> listed;
    std::vector<Key> remote;  // of the current row
    std::int64_t begin = rows.begin;
    const auto close = [&](std::int64_t end) {
      waves.push_back({{begin, end}, {wave.begin(), wave.end()}});
      std::sort(waves.back().needs.begin(), waves.back().needs.end());
      wave.clear();
      begin = end;
    };
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      listed.clear();
      if (needs(row, listed)) remote = remote_of(listed);
      check_fits(remote, row);
      const auto fresh = std::count_if(remote.begin(), remote.end(), [&](Key key) { return !wave.contains(key); });
      if (static_cast<std::int64_t>(wave.size()) + fresh > wave_blocks_ || row - begin == rows_at_most) close(row);
      wave.insert(remote.begin(), remote.end());
    }
    if (rows.end > begin) close(rows.end);
    return waves;
  }

  std::vector<Key> remote_of(const std::vector<BlockId>& blocks) const {
    std::vector<Key> remote;
    for (const BlockId& block : blocks) {
      if (layout_.owner(block.chunk) != rank_) remote.push_back(key_of(block));
    }
    std::sort(remote.begin(), remote.end());
    remote.erase(std::unique(remote.begin(), remote.end()), remote.end());
    return remote;
  }

  void check_fits(const std::vector<Key>& remote, std::int64_t row) const {
    const auto blocks = static_cast<std::int64_t>(remote.size());
    if (blocks <= wave_blocks_) return;
    constexpr double kMib = 1024.0 * 1024.0;
    fail_bad_input(fmt::format(
        "fetch-mib = {:.3f} is below {:.3f}, what row {} of rank {} needs: two waves of {} blocks of {} bytes",
        static_cast<double>(capacity_ * block_bytes_) / kMib, static_cast<double>(2 * blocks * block_bytes_) / kMib,
        row, rank_.value(), blocks, block_bytes_));
  }

  // Gives every block of wave w a slot and lists the reads of those that are not resident.
  void place(const std::vector<Wave>& waves, std::size_t w) {
    std::vector<Key> missing;
    for (const Key key : waves[w].needs) {
      if (!slot_of_.contains(key)) missing.push_back(key);
    }
    std::vector<std::int64_t> slots = free_slots(missing.size(), w);
    std::sort(slots.begin(), slots.end());
    sort_by_owner(missing);
    FetchWave wave{waves[w].rows, {}};
    for (std::size_t n = 0; n < missing.size(); ++n) {
      slot_of_[missing[n]] = slots[n];
      slot_owner_[static_cast<std::size_t>(slots[n])] = missing[n];
      append(wave.runs, missing[n], slots[n]);
    }
    plan_.blocks += static_cast<std::int64_t>(missing.size());
    plan_.waves.push_back(std::move(wave));
  }

  // Starts with the rank after this one, so that ranks do not all ask the same owner first.
  void sort_by_owner(std::vector<Key>& keys) const {
    const auto place = [&](Key key) {
      const BlockId block = block_of(key);
      const std::int64_t turn =
          (layout_.owner(block.chunk).value() - rank_.value() + layout_.ranks()) % layout_.ranks();
      return std::tuple(turn, layout_.slot(block.chunk), block.kv_head);
    };
    std::sort(keys.begin(), keys.end(), [&](Key a, Key b) { return place(a) < place(b); });
  }

  // Unused slots first, then those whose block is needed last; never a block that this wave or the one before needs.
  std::vector<std::int64_t> free_slots(std::size_t count, std::size_t w) {
    std::vector<std::int64_t> slots;
    while (slots.size() < count && static_cast<std::int64_t>(slot_owner_.size()) < capacity_) {
      slots.push_back(static_cast<std::int64_t>(slot_owner_.size()));
      slot_owner_.push_back(-1);
    }
    if (slots.size() == count) return slots;
    struct Victim {
      std::size_t next_use;
      std::int64_t slot;
    };
    std::vector<Victim> victims;
    for (std::size_t slot = 0; slot < slot_owner_.size(); ++slot) {
      const Key key = slot_owner_[slot];
      if (key < 0) continue;
      const auto& uses = uses_.at(key);
      const auto from_before = std::lower_bound(uses.begin(), uses.end(), w == 0 ? 0 : w - 1);
      if (from_before != uses.end() && *from_before <= w) continue;
      victims.push_back({from_before == uses.end() ? SIZE_MAX : *from_before, static_cast<std::int64_t>(slot)});
    }
    std::sort(victims.begin(), victims.end(), [](const Victim& a, const Victim& b) {
      return std::pair(b.next_use, a.slot) < std::pair(a.next_use, b.slot);
    });
    for (const Victim& victim : victims) {
      if (slots.size() == count) break;
      slot_of_.erase(slot_owner_[static_cast<std::size_t>(victim.slot)]);
      slot_owner_[static_cast<std::size_t>(victim.slot)] = -1;
      slots.push_back(victim.slot);
    }
    require(slots.size() == count, "two consecutive waves fit into the fetch arena");
    return slots;
  }

  void append(std::vector<FetchRun>& runs, Key key, std::int64_t slot) const {
    const BlockId block = block_of(key);
    const RankId owner = layout_.owner(block.chunk);
    const std::int64_t offset = kvstore::BlockStore::offset_of(problem_, layout_.slot(block.chunk), block.kv_head);
    if (!runs.empty()) {
      FetchRun& run = runs.back();
      const auto length = static_cast<std::int64_t>(run.blocks.size());
      if (run.owner == owner && run.offset + length * block_bytes_ == offset && run.slot + length == slot) {
        run.blocks.push_back(block);
        return;
      }
    }
    runs.push_back({owner, offset, slot, {block}});
  }

  const AttentionProblem& problem_;
  const partition::Layout& layout_;
  RankId rank_;
  std::int64_t block_bytes_;
  std::int64_t shortest_;  // rows of a wave
  std::int64_t wave_blocks_;
  std::int64_t capacity_;
  FetchPlan plan_;
  std::unordered_map<Key, std::vector<std::size_t>> uses_;  // waves that need a block, ascending
  std::unordered_map<Key, std::int64_t> slot_of_;           // resident blocks
  std::vector<Key> slot_owner_;                             // by slot, -1 when empty
};

}  // namespace

std::int64_t rows_of_wave(std::int64_t rows, std::int64_t shortest) {
  return std::max(shortest, (rows + kWavesWanted - 1) / kWavesWanted);
}

FetchPlan plan_fetch(const AttentionProblem& problem, const partition::Layout& layout, RankId rank, RowRange rows,
                     const RowNeeds& needs, std::int64_t budget, std::int64_t shortest) {
  return Planner(problem, layout, rank, budget, shortest).plan(rows, needs);
}

}  // namespace ringmark::runtime
