#include "runtime/cuda/prefill.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/attend.h"
#include "kernels/cuda/landmarks.h"
#include "kernels/cuda/row_geometry.h"
#include "kvstore/block_store.h"
#include "kvstore/landmark_table.h"
#include "runtime/cuda/chosen_fetch.h"
#include "runtime/cuda/landmark_records.h"
#include "runtime/cuda/own_blocks.h"
#include "runtime/cuda/own_chunks.h"
#include "runtime/cuda/selector.h"
#include "runtime/cuda/timeline.h"
#include "runtime/fetch_plan.h"
#include "runtime/meeting.h"
#include "runtime/row_needs.h"
#include "runtime/wave_fetcher.h"
#include "runtime/window_fetch.h"

namespace ringmark::runtime::cuda {
namespace {

using kernels::cuda::DeviceBlocks;
using kernels::cuda::Path;
using kvstore::BlockStore;
using kvstore::LandmarkTable;
using partition::SequenceGrid;

// Regions of the transport, in the order in which they are exposed.
constexpr int kBlockRegion = 0;
constexpr int kLandmarkRegion = 1;

class Prefill {
 public:
  Prefill(comm::Communicator& communicator, comm::cuda::DeviceTransport& transport, const AttentionProblem& problem,
          const AttentionPolicy& policy, const partition::Layout& layout, DeviceShard& shard, const LayerShard* host,
          const DevicePrefillOptions& options, Workspace& workspace, ProgressSink& progress)
      : communicator_(communicator),
        transport_(transport),
        problem_(problem),
        policy_(policy),
        layout_(layout),
        rank_(communicator.rank()),
        shard_(shard),
        host_(host),
        options_(options),
        workspace_(workspace),
        progress_(progress),
        grid_(problem, policy),
        shape_(kernels::cuda::LayerShape::of(problem, policy, grid_)),
        path_(kernels::cuda::resolve_path(options.path, shape_)),
        table_(kernels::BlockShape::of(problem), grid_.chunk_count(), problem.kv_heads),
        timeline_(workspace.stream, "gpu compute"),
        fetch_timeline_(transport.stream(), "gpu fetch") {
    result_.clock.record_in(options.trace);
  }

  DevicePrefillResult run() {
    upload_geometry();
    store_blocks();     // K, V of my chunks, in memory that peers may read
    build_landmarks();  // k', b' per chunk and head
    publish();          // from here on peers read
    attend_window();    // O, lse of the local window and the sinks
    meeting_.meet("after the window");
    select_chunks();  // global top-K, independent of the rank count
    attend_chunks();  // only the chosen blocks move; hierarchical softmax
    timeline_.collect(result_.clock, options_.trace);
    StageClock hidden;  // the clock's "fetch" is what the host waited for, not what ran beside the kernels
    fetch_timeline_.collect(hidden, options_.trace);
    meeting_.meet("end of the layer");
    transport_.retire();  // nobody reads any more
    return std::move(result_);
  }

 private:
  cudaStream_t stream() const { return workspace_.stream; }
  std::int64_t rows() const { return shard_.rows; }
  bool alone() const { return communicator_.size() == 1; }
  const std::byte* scoring_queries() const {
    return policy_.scorer == Scorer::kHils ? shard_.retrieval_queries() : shard_.q.data();
  }

  void upload_geometry() {
    const auto span = result_.clock.time("plan");
    const std::vector<kernels::cuda::RowRun> runs = kernels::cuda::row_runs(grid_, layout_, rank_);
    const auto run_count = static_cast<std::int64_t>(runs.size());
    chunk_geometry_ = kernels::cuda::chunk_geometry(grid_, policy_);
    geometry_ = {Workspace::reserve(workspace_.rows, rows()),
                 Workspace::reserve(workspace_.chunks, grid_.chunk_count()), rows()};
    const kernels::cuda::RowRun* device_runs = Workspace::reserve(workspace_.row_runs, run_count);
    workspace_.row_runs.upload(runs.data(), run_count, stream());
    workspace_.chunks.upload(chunk_geometry_.data(), grid_.chunk_count(), stream());
    Workspace::reserve(workspace_.block_table, grid_.chunk_count() * problem_.kv_heads);
    Workspace::reserve(workspace_.record_table, grid_.chunk_count());
    workspace_.stream.wait();  // the host arrays go away
    kernels::cuda::expand_row_runs(device_runs, run_count, workspace_.rows.data(), stream());
    for (const auto& run : runs) {
      const std::int64_t eligible = run.first.eligible_end - run.first.eligible_first;
      result_.chosen += run.rows * problem_.kv_heads * std::min<std::int64_t>(eligible, shape_.topk);
    }
  }

  void store_blocks() {
    const auto chunks = static_cast<std::int64_t>(layout_.chunks_of(rank_).size());
    blocks_ = transport_.expose(BlockStore::bytes_of(problem_, chunks));
    records_ = transport_.expose(LandmarkTable::bytes_of(shape_.landmark_shape(), chunks));
    own_ = upload_own_chunks(grid_, layout_, rank_, chunk_geometry_, workspace_);
    path_ = pack_own_blocks(communicator_, shape_, path_, own_, shard_, blocks_.data(), workspace_, timeline_);
    result_.path = path_;
    for (std::int64_t slot = 0; slot < chunks; ++slot) {
      for (std::int64_t kv_head = 0; kv_head < problem_.kv_heads; ++kv_head) {
        table_.set(layout_.chunks_of(rank_)[static_cast<std::size_t>(slot)], kv_head,
                   blocks_.data() + BlockStore::offset_of(problem_, slot, kv_head));
      }
    }
    upload_table();
  }

  void upload_table() {
    workspace_.block_table.upload(table_.addresses().data(), static_cast<std::int64_t>(table_.addresses().size()),
                                  stream());
  }

  DeviceBlocks blocks() const { return {workspace_.block_table.data(), kernels::cuda::block_order(path_)}; }

  void build_landmarks() {
    if (!policy_.selects()) return;
    const auto span = timeline_.time("landmarks");
    kernels::cuda::build_landmarks(shape_, geometry_, blocks(), own_.ids, own_.has_landmark, own_.landmark_rows,
                                   own_.count, shard_.retrieval_queries(), reinterpret_cast<float*>(records_.data()),
                                   stream());
  }

  void publish() {
    if (!alone()) workspace_.stream.wait();
    transport_.publish();
  }

  void attend_window() {
    // A row that no kernel wrote must not look like a result: all bits set is a NaN.
    Workspace::reserve(workspace_.out, rows() * problem_.heads * problem_.head_dim);
    Workspace::reserve(workspace_.lse, rows() * problem_.heads);
    workspace_.out.fill_bytes(0xFF, stream());
    workspace_.lse.fill_bytes(0xFF, stream());
    WindowFetch fetch{{{{{0, 1}, {}}}, 0, 0}, rows()};
    if (!alone()) {
      const auto span = result_.clock.time("plan");
      fetch = plan_window_fetch(problem_, grid_, layout_, rank_, options_.fetch_budget);
    }
    in_waves("window", fetch.plan, fetch.group_rows, [&](RowRange rows) {
      kernels::cuda::attend_window(path_, shape_, geometry_, blocks(), shard_.q.data(), rows, workspace_.out.data(),
                                   workspace_.lse.data(), stream());
    });
  }

  void select_chunks() {
    result_.merge = choose_merge(options_.merge, merge_cost(problem_, policy_, layout_), options_.table_budget);
    if (alone()) result_.merge = Merge::kLandmarks;
    if (!policy_.selects()) return;
    LandmarkRecords records(transport_, kLandmarkRegion, grid_, layout_, rank_, shape_.landmark_shape(), records_,
                            workspace_);
    if (result_.merge == Merge::kLandmarks) {
      {
        const auto copying = fetch_timeline_.time("landmarks");
        result_.bytes_merged += records.read(records.all_remote());
      }
      const DeviceSelectorInput input{path_, shape_, geometry_, scoring_queries()};
      const ChoiceCount count = select_with_all_landmarks(input, workspace_, timeline_);
      result_.pairs = count.pairs;
      result_.exact_pairs = count.exact_pairs;
    } else {
      merge_score_lists(records);
    }
  }

  void merge_score_lists(LandmarkRecords& records) {
    require(host_ != nullptr, "the scores merge has the queries in host memory");
    const auto span = result_.clock.time("select");
    records.read({});
    std::vector<float> lse(static_cast<std::size_t>(rows() * problem_.heads));
    workspace_.lse.download(lse.data(), static_cast<std::int64_t>(lse.size()), stream());
    workspace_.stream.wait();
    const RowsView queries = policy_.scorer == Scorer::kHils ? host_->retrieval_queries() : host_->queries();
    const std::vector<TokenId> tokens = layout_.tokens_of(rank_);
    const SelectorInput input{problem_, policy_, grid_, layout_, tokens, queries, lse, 1};
    result_.bytes_merged += received_bytes(input, rank_, Merge::kScores);
    kernels::Selection selection(rows(), problem_.kv_heads, policy_.topk);
    merge_scores(communicator_, input, exact_scorer(shape_, grid_, workspace_), selection, progress_);
    result_.pairs = result_.exact_pairs = rows() * problem_.kv_heads;
    const auto slots = static_cast<std::int64_t>(selection.chunks.size());
    Workspace::reserve(workspace_.selection, slots);
    Workspace::reserve(workspace_.chosen_scores, slots * problem_.group());
    workspace_.selection.upload(selection.chunks.data(), slots, stream());
    std::vector<ChunkId> chosen = chosen_in(selection, {0, rows()});
    std::erase_if(chosen, [&](ChunkId chunk) { return layout_.owner(chunk) == rank_; });
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&](ChunkId a, ChunkId b) { return layout_.owner(a) < layout_.owner(b); });
    result_.bytes_merged += records.read(chosen);
    kernels::cuda::score_chosen(shape_, scoring_queries(), {0, rows()}, workspace_.selection.data(),
                                workspace_.record_table.data(), workspace_.chosen_scores.data(), stream());
  }

  void attend_chunks() {
    if (!policy_.selects()) return;
    Workspace::reserve(workspace_.window_weights, rows() * problem_.heads);
    {
      const auto span = timeline_.time("attend");
      kernels::cuda::weigh_chunks(shape_, {0, rows()}, workspace_.chosen_scores.data(), workspace_.lse.data(),
                                  workspace_.window_weights.data(), stream());
    }
    FetchPlan plan{{{{0, 1}, {}}}, 0, 0};
    std::int64_t group_rows = rows();
    if (!alone()) {
      const auto span = result_.clock.time("plan");
      GroupFetch fetch = plan_chosen_fetch(problem_, layout_, rank_, shape_, rows(), options_.fetch,
                                           options_.fetch_budget, workspace_);
      result_.fetch = fetch.decision;
      plan = std::move(fetch.plan);
      group_rows = fetch.group_rows;
    }
    in_waves("attend", plan, group_rows, [&](RowRange wave) {
      for (std::int64_t begin = wave.begin; begin < wave.end; begin += kUnionRows) {
        const RowRange part{begin, std::min(wave.end, begin + kUnionRows)};
        kernels::cuda::UnionPlan unions;
        Path path = path_;
        if (path_ != Path::kSimt) {
          unions = workspace_.unions.plan(shape_, workspace_.selection.data(), part, stream());
          result_.union_items += workspace_.unions.items();
          result_.union_queries = unions.tile_queries;
          path = kernels::cuda::choose_union_path(path_, shape_, union_ratio(part, unions));
        }
        if (path != path_) result_.finer_rows += part.size();
        kernels::cuda::attend_chosen(path, shape_, geometry_, blocks(), shard_.q.data(), part, unions,
                                     workspace_.selection.data(), workspace_.chosen_scores.data(),
                                     workspace_.window_weights.data(), workspace_.out.data(), stream());
      }
    });
  }

  // Chunks that a tile loads over chunks that one of its queries chose, had all rows K to choose from.
  double union_ratio(RowRange part, const kernels::cuda::UnionPlan& unions) const {
    const double chosen = static_cast<double>(part.size() * problem_.kv_heads) * static_cast<double>(shape_.topk);
    return static_cast<double>(workspace_.unions.items()) * static_cast<double>(unions.tile_queries) / chosen;
  }

  // The next wave is fetched while the GPU works on the current one. The plan counts in groups of `group_rows` rows.
  template <class Work>
  void in_waves(std::string_view stage, const FetchPlan& plan, std::int64_t group_rows, Work&& work) {
    const std::int64_t block_bytes = table_.shape().bytes();
    std::byte* arena = Workspace::reserve(workspace_.fetched_blocks, plan.slots * block_bytes);
    WaveFetcher fetcher(transport_, kBlockRegion, plan, {arena, static_cast<std::size_t>(plan.slots * block_bytes)},
                        table_);
    result_.bytes_fetched += plan.blocks * block_bytes;
    std::array<std::int64_t, 1> rounds = {static_cast<std::int64_t>(plan.waves.size())};
    if (transport_.collective_get() && !alone()) communicator_.all_reduce_max("count waves", rounds);
    ringmark::cuda::Event worked;  // the wave before
    worked.record(stream());
    const auto start = [&](std::size_t next) {
      const auto span = result_.clock.time("fetch");
      worked.hold(transport_.stream());  // its blocks may be overwritten
      const auto copying = fetch_timeline_.time("fetch");
      fetcher.start(next);
    };
    progress_.begin(stage, rows());
    for (std::int64_t round = 0; round < rounds[0]; ++round) {
      const auto wave = static_cast<std::size_t>(round);
      if (!alone()) {
        if (wave == 0) start(0);
        const auto span = result_.clock.time("fetch");
        fetcher.wait();
        upload_table();
      }
      if (wave < plan.waves.size()) {
        const RowRange groups = plan.waves[wave].rows;
        const RowRange rows_of_wave{groups.begin * group_rows, std::min(rows(), groups.end * group_rows)};
        if (!rows_of_wave.empty()) {
          const auto span = timeline_.time(stage);
          work(rows_of_wave);
        }
        progress_.advance(rows_of_wave.end);
      }
      if (round + 1 < rounds[0]) start(wave + 1);  // the GPU has work meanwhile
      worked.record(stream());
    }
    if (!alone()) workspace_.stream.wait();  // the fetched blocks are given up
    progress_.end();
  }

  comm::Communicator& communicator_;
  comm::cuda::DeviceTransport& transport_;
  const AttentionProblem& problem_;
  const AttentionPolicy& policy_;
  const partition::Layout& layout_;
  RankId rank_;
  DeviceShard& shard_;
  const LayerShard* host_;
  const DevicePrefillOptions& options_;
  Workspace& workspace_;
  ProgressSink& progress_;
  SequenceGrid grid_;
  kernels::cuda::LayerShape shape_;
  Path path_;
  kernels::BlockTable table_;
  Timeline timeline_;
  Timeline fetch_timeline_;
  std::vector<kernels::cuda::ChunkGeometry> chunk_geometry_;
  kernels::cuda::Geometry geometry_;
  comm::Bytes blocks_;   // on the device
  comm::Bytes records_;  // on the device
  OwnChunks own_;
  DevicePrefillResult result_;
  Meeting meeting_{communicator_, grid_, layout_};
};

}  // namespace

DevicePrefillResult prefill(comm::Communicator& communicator, comm::cuda::DeviceTransport& transport,
                            const AttentionProblem& problem, const AttentionPolicy& policy,
                            const partition::Layout& layout, DeviceShard& shard, const LayerShard* host,
                            const DevicePrefillOptions& options, Workspace& workspace, ProgressSink& progress) {
  return Prefill(communicator, transport, problem, policy, layout, shard, host, options, workspace, progress).run();
}

PrefillResult download(const AttentionProblem& problem, const AttentionPolicy& policy, std::int64_t rows,
                       const Workspace& workspace, const DevicePrefillResult& result) {
  PrefillResult host;
  host.out.resize(static_cast<std::size_t>(rows * problem.heads * problem.head_dim));
  host.lse.resize(static_cast<std::size_t>(rows * problem.heads));
  host.selection = kernels::Selection(rows, problem.kv_heads, policy.selects() ? policy.topk : 0);
  workspace.out.download(host.out.data(), static_cast<std::int64_t>(host.out.size()), workspace.stream);
  workspace.lse.download(host.lse.data(), static_cast<std::int64_t>(host.lse.size()), workspace.stream);
  workspace.selection.download(host.selection.chunks.data(), static_cast<std::int64_t>(host.selection.chunks.size()),
                               workspace.stream);
  workspace.stream.wait();
  host.merge = result.merge;
  host.bytes_fetched = result.bytes_fetched;
  host.bytes_merged = result.bytes_merged;
  host.clock = result.clock;
  return host;
}

PrefillResult prefill_on_gpu(comm::Communicator& communicator, comm::cuda::DeviceTransport& transport,
                             const AttentionProblem& problem, const AttentionPolicy& policy,
                             const partition::Layout& layout, LayerShard& shard, const DevicePrefillOptions& options,
                             ProgressSink& progress, DevicePrefillResult* details) {
  require(shard.landmark_queries().rows == 0, "landmark queries of a GPU are rows of the sequence");
  Workspace workspace;
  DeviceShard device = DeviceShard::upload(shard, workspace.stream);
  const DevicePrefillResult result =
      prefill(communicator, transport, problem, policy, layout, device, &shard, options, workspace, progress);
  if (details != nullptr) *details = result;
  return download(problem, policy, device.rows, workspace, result);
}

}  // namespace ringmark::runtime::cuda
