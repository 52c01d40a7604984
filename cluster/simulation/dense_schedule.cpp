#include "cluster/simulation/dense_schedule.h"

#include <algorithm>
#include <optional>

#include "cluster/planning/cost_model.h"
#include "kvstore/block_store.h"
#include "runtime/dense/key_pieces.h"
#include "runtime/dense/ring_route.h"
#include "runtime/dense/team.h"

namespace ringmark::cluster {
namespace {

using partition::Layout;
using partition::SequenceGrid;
using runtime::dense::Team;

// (row, key) pairs between chunks of rows and chunks of keys, both ascending, of one document.
double pairs_between(const SequenceGrid& grid, const std::vector<ChunkId>& rows, std::span<const ChunkId> keys) {
  double pairs = 0, before = 0;  // keys of chunks before the rows'
  auto key = keys.begin();
  for (const ChunkId chunk : rows) {
    for (; key != keys.end() && *key < chunk; ++key) before += static_cast<double>(grid.tokens_of(*key).size());
    const auto count = static_cast<double>(grid.tokens_of(chunk).size());
    pairs += count * before;
    if (key != keys.end() && *key == chunk) pairs += count * (count + 1) / 2;
  }
  return pairs;
}

class DenseScheduler {
 public:
  DenseScheduler(const LayerJob& job, const SequenceGrid& grid, const Layout& layout, const Topology& topology,
                 const MachineProfile& profile)
      : job_(job),
        grid_(grid),
        layout_(layout),
        topology_(topology),
        profile_(profile),
        on_gpu_(profile.backend == "cuda"),
        chunk_bytes_(kvstore::BlockStore::bytes_of(job.problem, 1)) {
    for (int place = 0; place < layout.ranks(); ++place) {
      team_.ranks.push_back(place);
      team_.chunks.push_back(layout.chunks_of(RankId(place)));
    }
    slowdown_ = topology.shared_cores > 0 ? 1.0 : profile.slowdown(topology.ranks_per_node);
  }

  LayerSchedules run(Arm arm) {
    if (arm == Arm::kAllGather) {
      pieces_ = runtime::dense::cut_pieces(grid_, team_, job_.fetch_budget / 2 / chunk_bytes_);
    } else if (!on_gpu_) {
      route_.emplace(grid_, team_);
    }
    for (int rank = 0; rank < layout_.ranks(); ++rank) {
      team_.place = rank;
      Step attend{Step::kWaves, Stage::kAttend, Stage::kFetch};
      attend.streamed = true;
      attend.together = !on_gpu_ || topology_.nodes > 1;
      attend.waves = arm == Arm::kAllGather ? gather_waves() : ring_waves();
      result_.ranks.push_back(around(rank, std::move(attend)));
    }
    even_rounds(result_.ranks);
    return std::move(result_);
  }

 private:
  RankSchedule around(int rank, Step attend) {
    const StageRate& store = profile_.compute.store;
    const auto rows = static_cast<double>(layout_.token_count(RankId(rank)));
    const double packing =
        slowdown_ * store.seconds(rows, static_cast<double>(chunk_bytes_ * std::ssize(team_.own_chunks())));
    const double rest = slowdown_ * profile_.compute.rest.seconds(rows, 0.0);
    result_.compute_seconds += packing;
    for (const SimulatedWave& wave : attend.waves) {
      result_.compute_seconds += wave.seconds;
      for (const OwnerReads& reads : wave.reads) result_.bytes_fetched += reads.bytes;
    }
    return {{compute_step(Stage::kStore, packing), meet_step(), std::move(attend), meet_step(),
             compute_step(Stage::kRest, rest)}};
  }

  double attend_seconds(std::span<const ChunkId> keys) const {
    const double flops = 4.0 * pairs_between(grid_, team_.own_chunks(), keys) *
                         static_cast<double>(job_.problem.heads * job_.problem.head_dim);
    return slowdown_ * profile_.compute.dense.unit * flops;
  }

  std::vector<SimulatedWave> ring_waves() const {
    std::vector<SimulatedWave> waves;
    for (int hop = 0; hop < team_.size(); ++hop) {
      const int owner =
          on_gpu_ ? team_.place_after(team_.place, hop) : team_.place_after(team_.place, -route_->direction() * hop);
      const std::vector<ChunkId> keys =
          hop == 0 ? team_.own_chunks() : runtime::dense::needed_keys(grid_, team_, team_.place, owner);
      SimulatedWave wave{{}, attend_seconds(keys)};
      const int from = on_gpu_ ? owner : team_.place_after(team_.place, route_ ? -route_->direction() : 1);
      const std::int64_t chunks = on_gpu_ ? std::ssize(keys) : hop == 0 ? 0 : route_->travelling(owner, hop);
      if (hop > 0 && chunks > 0) wave.reads.push_back({from, chunks * chunk_bytes_, 1});
      waves.push_back(std::move(wave));
    }
    return waves;
  }

  std::vector<SimulatedWave> gather_waves() const {
    std::vector<std::vector<ChunkId>> needed;  // by place
    for (int place = 0; place < team_.size(); ++place) {
      needed.push_back(place == team_.place ? team_.own_chunks()
                                            : runtime::dense::needed_keys(grid_, team_, team_.place, place));
    }
    std::vector<SimulatedWave> waves;
    for (const Range<ChunkId>& piece : pieces_) {
      std::vector<ChunkId> keys;
      SimulatedWave wave;
      for (int place = 0; place < team_.size(); ++place) {
        const std::vector<ChunkId>& of = needed[static_cast<std::size_t>(place)];
        const auto first = std::lower_bound(of.begin(), of.end(), piece.begin);
        const auto end = std::lower_bound(first, of.end(), piece.end);
        keys.insert(keys.end(), first, end);
        if (place != team_.place && first != end) wave.reads.push_back({place, (end - first) * chunk_bytes_, 1});
      }
      std::sort(keys.begin(), keys.end());
      wave.seconds = attend_seconds(keys);
      waves.push_back(std::move(wave));
    }
    return waves;
  }

  const LayerJob& job_;
  const SequenceGrid& grid_;
  const Layout& layout_;
  const Topology& topology_;
  const MachineProfile& profile_;
  bool on_gpu_;
  std::int64_t chunk_bytes_;
  double slowdown_ = 1.0;
  Team team_;
  std::optional<runtime::dense::RingRoute> route_;
  std::vector<Range<ChunkId>> pieces_;
  LayerSchedules result_;
};

}  // namespace

LayerSchedules schedule_dense(const LayerJob& job, Arm arm, const SequenceGrid& grid, const Layout& layout,
                              const Topology& topology, const MachineProfile& profile) {
  return DenseScheduler(job, grid, layout, topology, profile).run(arm);
}

}  // namespace ringmark::cluster
