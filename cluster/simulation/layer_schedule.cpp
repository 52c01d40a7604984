#include "cluster/simulation/layer_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cluster/planning/cost_model.h"
#include "cluster/simulation/dense_schedule.h"
#include "core/error.h"
#include "kernels/block_table.h"
#include "kernels/landmarks.h"
#include "kvstore/landmark_table.h"
#include "runtime/group_fetch.h"
#include "runtime/row_needs.h"
#include "runtime/selector.h"
#include "runtime/window_fetch.h"

namespace ringmark::cluster {
namespace {

using partition::Layout;
using partition::SequenceGrid;

class SparseScheduler {
 public:
  SparseScheduler(const LayerJob& job, const SequenceGrid& grid, const Layout& layout, const Topology& topology,
                  const MachineProfile& profile)
      : job_(job),
        grid_(grid),
        layout_(layout),
        topology_(topology),
        profile_(profile),
        on_gpu_(profile.backend == "cuda"),
        // Between nodes GPUs read by NCCL, whose exchanges are collective.
        together_(on_gpu_ && topology.nodes > 1),
        selection_(job.problem, job.policy, grid, job.turns),
        block_bytes_(kernels::BlockShape::of(job.problem).bytes()) {
    const runtime::Merge merge = runtime::choose_merge(
        runtime::Merge::kAuto, runtime::merge_cost(job.problem, job.policy, layout), job.table_budget);
    if (layout.ranks() > 1 && merge == runtime::Merge::kScores) {
      fail_bad_input(
          fmt::format("tokens = {} on {} ranks would merge by scores, which is not simulated: the table of "
                      "landmarks is over {} bytes or dearer than visiting queries",
                      job.problem.tokens, layout.ranks(), job.table_budget));
    }
  }

  LayerSchedules run() {
    for (int rank = 0; rank < layout_.ranks(); ++rank) result_.ranks.push_back(schedule(RankId(rank)));
    even_rounds(result_.ranks);
    return std::move(result_);
  }

 private:
  bool alone() const { return layout_.ranks() == 1; }

  RankSchedule schedule(RankId rank) {
    const QueryModel model{job_.turns.agreement, job_.turns.topics, job_.turns.needles};
    const RankWork work = count_work(job_.problem, job_.policy, grid_, layout_, rank, model);
    const double slowdown = topology_.shared_cores > 0 ? 1.0 : profile_.slowdown(topology_.ranks_per_node);
    const RankSeconds seconds = predict(work, profile_.compute, slowdown);
    result_.compute_seconds += seconds.total() - seconds.rest - seconds.pack;
    RankSchedule schedule;
    std::vector<Step>& steps = schedule.steps;
    steps.push_back(compute_step(Stage::kStore, seconds.store));
    steps.push_back(compute_step(Stage::kLandmarks, seconds.landmarks));
    steps.push_back(meet_step());  // publish
    steps.push_back(window_step(rank, seconds.window));
    steps.push_back(meet_step());  // after the window
    if (job_.policy.selects()) {
      steps.push_back(gather_step(rank));
      steps.push_back(compute_step(Stage::kPack, seconds.pack));
      steps.push_back(compute_step(Stage::kScore, seconds.score));
      steps.push_back(compute_step(Stage::kPlan, seconds.plan));
      steps.push_back(attend_step(rank, seconds.attend));
    }
    steps.push_back(meet_step());  // end of the layer
    steps.push_back(compute_step(Stage::kRest, seconds.rest));
    return schedule;
  }

  Step window_step(RankId rank, double seconds) {
    if (on_gpu_) {
      const runtime::WindowFetch fetch =
          runtime::plan_window_fetch(job_.problem, grid_, layout_, rank, job_.fetch_budget);
      return waves_step(Stage::kWindow, fetch.plan, seconds, false);
    }
    const std::vector<TokenId> tokens = layout_.tokens_of(rank);
    const runtime::FetchPlan plan =
        runtime::plan_fetch(job_.problem, layout_, rank, {0, std::ssize(tokens)},
                            runtime::window_needs(job_.problem, grid_, tokens), job_.fetch_budget);
    return waves_step(Stage::kWindow, plan, seconds, false);
  }

  Step attend_step(RankId rank, double seconds) {
    const std::int64_t rows = layout_.token_count(rank);
    if (!on_gpu_) {
      const runtime::FetchPlan plan = runtime::plan_fetch(job_.problem, layout_, rank, {0, rows},
                                                          selection_.needs(layout_, rank), job_.fetch_budget);
      return waves_step(Stage::kAttend, plan, seconds, false);
    }
    if (alone()) return waves_step(Stage::kAttend, {{{{0, 1}, {}}}, 0, 0}, seconds, false);
    const runtime::GroupFetch fetch =
        runtime::plan_group_fetch(job_.problem, layout_, rank, grid_.chunk_count(), rows, job_.fetch, job_.fetch_budget,
                                  [&](std::int64_t group_rows) { return selection_.marks(layout_, rank, group_rows); });
    const bool streams = fetch.decision.fetch == runtime::Fetch::kStream;
    result_.streaming_ranks += streams ? 1 : 0;
    return waves_step(Stage::kAttend, fetch.plan, seconds, streams);
  }

  // Every rank's records of every other rank, at once.
  Step gather_step(RankId rank) {
    Step step{Step::kWaves, Stage::kPack, Stage::kGather};
    step.streamed = true;
    step.together = !alone();
    step.waves.resize(1);
    const auto shape = kernels::LandmarkShape::of(job_.problem, job_.policy.scorer);
    for (int turn = 1; turn < layout_.ranks(); ++turn) {
      const auto owner = static_cast<int>((rank.value() + turn) % layout_.ranks());
      const auto chunks = static_cast<std::int64_t>(layout_.chunks_of(RankId(owner)).size());
      if (chunks == 0) continue;
      const std::int64_t bytes = kvstore::LandmarkTable::bytes_of(shape, chunks);
      step.waves[0].reads.push_back({owner, bytes, 1});
      result_.bytes_merged += bytes;
    }
    return step;
  }

  Step waves_step(Stage stage, const runtime::FetchPlan& plan, double seconds, bool streamed) {
    Step step{Step::kWaves, stage, Stage::kFetch};
    step.streamed = streamed;
    step.together = together_;
    std::int64_t rows = 0;
    for (const runtime::FetchWave& wave : plan.waves) rows += wave.rows.size();
    for (const runtime::FetchWave& wave : plan.waves) {
      std::map<int, OwnerReads> by_owner;
      for (const runtime::FetchRun& run : wave.runs) {
        const auto owner = static_cast<int>(run.owner.value());
        OwnerReads& reads = by_owner[owner];
        reads.owner = owner;
        reads.bytes += static_cast<std::int64_t>(run.blocks.size()) * block_bytes_;
        ++reads.reads;
      }
      SimulatedWave simulated;
      for (const auto& [owner, reads] : by_owner) simulated.reads.push_back(reads);
      // Rows of a shard cost nearly the same in these stages: a window each, and K chunks.
      simulated.seconds = seconds * static_cast<double>(wave.rows.size()) / static_cast<double>(rows);
      step.waves.push_back(std::move(simulated));
    }
    result_.bytes_fetched += plan.blocks * block_bytes_;
    return step;
  }

  const LayerJob& job_;
  const SequenceGrid& grid_;
  const Layout& layout_;
  const Topology& topology_;
  const MachineProfile& profile_;
  bool on_gpu_;
  bool together_;
  TurnSelection selection_;
  std::int64_t block_bytes_;
  LayerSchedules result_;
};

}  // namespace

LayerSchedules schedule_layer(const LayerJob& job, Arm arm, const Topology& topology, const MachineProfile& profile) {
  const SequenceGrid grid(job.problem, job.policy);
  const Layout layout = partition::make_layout(grid, topology.ranks(), job.balance);
  if (arm != Arm::kSparse) return schedule_dense(job, arm, grid, layout, topology, profile);
  return SparseScheduler(job, grid, layout, topology, profile).run();
}

std::int64_t memory_of_rank(const LayerJob& job, int ranks, const MachineProfile& profile) {
  const AttentionProblem& problem = job.problem;
  const std::int64_t chunks = problem.chunks_at_most();
  const std::int64_t own = (chunks + ranks - 1) / ranks, rows = own * problem.chunk_size;
  const std::int64_t element = size_of(problem.dtype);
  const std::int64_t blocks = own * problem.kv_heads * kernels::BlockShape::of(problem).bytes();
  const std::int64_t queries = rows * problem.heads * problem.head_dim * element;
  const std::int64_t keys = 2 * rows * problem.kv_heads * problem.head_dim * element;
  const std::int64_t output = rows * problem.heads * (problem.head_dim + 1) * 4;
  const std::int64_t remote =
      ranks == 1 ? 0 : std::min(job.fetch_budget, (chunks - own) * (blocks / std::max<std::int64_t>(1, own)));
  std::int64_t bytes = queries + keys + blocks + output + remote;
  if (!job.policy.selects()) return bytes;
  const auto shape = kernels::LandmarkShape::of(problem, job.policy.scorer);
  bytes += kvstore::LandmarkTable::bytes_of(shape, chunks) * (profile.backend == "cuda" ? 1 : 2);  // packed beside it
  return bytes + rows * (problem.kv_heads * job.policy.topk + problem.heads * (job.policy.topk + 1)) * 4;
}

}  // namespace ringmark::cluster
