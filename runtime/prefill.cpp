#include "runtime/prefill.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "core/error.h"
#include "kernels/absorb_sinks.h"
#include "kernels/attend_chunks.h"
#include "kernels/attend_union.h"
#include "kernels/attend_window.h"
#include "kernels/landmarks.h"
#include "kernels/positions/cache_positions.h"
#include "kvstore/block_store.h"
#include "kvstore/landmark_table.h"
#include "partition/sequence_grid.h"
#include "runtime/agreement.h"
#include "runtime/block_exposure.h"
#include "runtime/block_waves.h"
#include "runtime/fetch_plan.h"
#include "runtime/landmark_fetcher.h"
#include "runtime/landmark_rows.h"
#include "runtime/meeting.h"
#include "runtime/row_needs.h"
#include "runtime/selector.h"

namespace ringmark::runtime {
namespace {

using kernels::BlockTable;
using kernels::Selection;
using kvstore::BlockStore;
using kvstore::LandmarkTable;
using partition::SequenceGrid;

// Regions of the transport, in the order in which they are exposed.
constexpr int kBlockRegion = 0;
constexpr int kLandmarkRegion = 1;

class Prefill {
 public:
  Prefill(comm::Communicator& communicator, comm::BlockTransport& transport, const AttentionProblem& problem,
          const AttentionPolicy& policy, const partition::Layout& layout, LayerShard& shard,
          const PrefillOptions& options, ProgressSink& progress, PrefillResult begun)
      : communicator_(communicator),
        transport_(transport),
        problem_(problem),
        policy_(policy),
        layout_(layout),
        rank_(communicator.rank()),
        shard_(shard),
        options_(options),
        progress_(progress),
        grid_(problem, policy),
        tokens_(layout.tokens_of(rank_)),
        table_(kernels::BlockShape::of(problem), grid_.chunk_count(), problem.kv_heads),
        result_(std::move(begun)),
        done_(result_.done),
        meeting_(communicator, grid_, layout, done_.seconds) {
    result_.clock.record_in(options.trace);
    if (policy.landmark_positions != LandmarkPositions::kStingy) return;
    if (!options.positions.rotates()) fail_bad_input("landmark_positions = stingy needs queries and keys that rotate");
    cache_.emplace(problem, policy, grid_, options.positions);
  }

  PrefillResult run() {
    store_blocks();                               // K, V of my chunks, in memory that peers may read
    LandmarkTable landmarks = build_landmarks();  // k', b' per chunk and head
    load_chunks(landmarks);                       // that were computed before
    transport_.publish();                         // from here on peers read
    attend_window();                              // O, lse of the local window and the sinks
    if (all_go_on()) {                            // peers may have had more to do
      select_chunks(landmarks);                   // global top-K, independent of the rank count
      attend_chunks(landmarks);                   // only the chosen blocks move; mixed with the window
      meet_at_the_end();
    }
    absorb_sinks();         // the last step, on rows that are all done
    keep_state(landmarks);  // for whoever wants a snapshot
    transport_.retire();    // nobody reads any more
    done_.seconds = meeting_.seconds();
    return std::move(result_);
  }

 private:
  void store_blocks() {
    const auto span = result_.clock.time("landmarks");
    block_arena_ = expose_blocks(transport_, problem_, grid_, layout_, rank_, shard_, table_);
  }

  LandmarkTable build_landmarks() {
    const auto span = result_.clock.time("landmarks");
    const auto shape = kernels::LandmarkShape::of(problem_, policy_.scorer);
    const std::span<const ChunkId> chunks = layout_.chunks_of(rank_);
    const comm::Bytes arena =
        transport_.expose(LandmarkTable::bytes_of(shape, static_cast<std::int64_t>(chunks.size())));
    LandmarkTable landmarks(shape, grid_, layout_, rank_, arena);
    if (!policy_.selects()) return landmarks;
    std::fill(landmarks.own_records().begin(), landmarks.own_records().end(), 0.0f);
    const auto record = static_cast<std::size_t>(shape.record_floats());
    const auto has_rows = [&](ChunkId chunk) { return layout_.has_rows(chunk); };
    for (auto first = std::find_if(chunks.begin(), chunks.end(), has_rows); first != chunks.end();) {
      const auto end = std::find_if_not(first, chunks.end(), has_rows);
      const std::span<const ChunkId> run(first, end);
      const std::vector<std::byte> rows = landmark_rows(grid_, layout_, run, shard_);
      const RowsView queries{rows.data(), problem_.dtype, std::ssize(run), problem_.heads, problem_.head_dim};
      const auto slot = static_cast<std::size_t>(first - chunks.begin());
      kernels::build_landmarks(problem_, policy_.scorer, grid_, run, queries, table_,
                               landmarks.own_records().subspan(slot * record, run.size() * record), options_.threads);
      first = std::find_if(end, chunks.end(), has_rows);
    }
    return landmarks;
  }

  void load_chunks(LandmarkTable& landmarks) {
    if (!options_.load) return;
    const auto span = result_.clock.time("load");
    const std::vector<ChunkId>& chunks = layout_.chunks_of(rank_);
    agree(communicator_, "load what was computed before", [&] {
      for (std::size_t slot = 0; slot < chunks.size(); ++slot) {
        if (layout_.has_rows(chunks[slot])) continue;
        const std::size_t block_bytes = block_arena_.size() / chunks.size();
        const std::size_t record_floats = landmarks.own_records().size() / chunks.size();
        const bool has_record = policy_.selects() && grid_.has_landmark(chunks[slot]);
        options_.load(
            chunks[slot], block_arena_.subspan(slot * block_bytes, block_bytes),
            has_record ? landmarks.own_records().subspan(slot * record_floats, record_floats) : std::span<float>());
      }
    });
  }

  void attend_window() {
    // A row that no kernel wrote must not look like a result.
    constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();
    result_.out.resize(static_cast<std::size_t>(shard_.rows() * problem_.heads * problem_.head_dim), kUnwritten);
    result_.lse.resize(static_cast<std::size_t>(shard_.rows() * problem_.heads), kUnwritten);
    const FetchPlan plan = make_plan({done_.windowed, shard_.rows()}, window_needs(problem_, grid_, tokens_));
    const RowsView sink_queries = shard_.sink_queries();
    waves().run("window", plan, done_.windowed, {.attend = [&](RowRange rows) {
                  kernels::attend_window(problem_, grid_, shard_.queries(), tokens_, rows, table_, out(), lse(),
                                         options_.threads, shard_.has_sink_queries() ? &sink_queries : nullptr);
                }});
    if (!policy_.selects()) done_.selected = done_.attended = done_.windowed;
  }

  // Unless some rank is told to stop. With nothing to select, rows that have their window are done.
  bool all_go_on() {
    const bool rows_are_left = policy_.selects() || done_.windowed < shard_.rows();
    result_.stopped = meeting_.any("after the window", rows_are_left && options_.stop(), share(done_.windowed, 1));
    return !result_.stopped;
  }

  void select_chunks(LandmarkTable& landmarks) {
    const auto span = result_.clock.time("select");
    if (result_.selection.chunks.empty()) {
      result_.selection = Selection(shard_.rows(), policy_.choosers(problem_), policy_.selects() ? policy_.topk : 0);
    }
    result_.merge = choose_merge(options_.merge, merge_cost(problem_, policy_, layout_), options_.table_budget);
    if (!policy_.selects()) return;
    const SelectorInput input{problem_,       policy_,
                              grid_,          layout_,
                              tokens_,        scoring_queries(),
                              result_.lse,    options_.threads,
                              done_.selected, options_.tile_rows,
                              options_.stop,  cache_ ? &*cache_ : nullptr};
    result_.bytes_merged = received_bytes(input, rank_, result_.merge);
    done_.selected =
        runtime::select_chunks(communicator_, input, landmarks, result_.merge, result_.selection, progress_);
  }

  void attend_chunks(const LandmarkTable& landmarks) {
    if (!policy_.selects()) return;
    kernels::LandmarkRecords records = landmarks.records();
    LandmarkFetcher record_fetcher(transport_, kLandmarkRegion, layout_, records);
    const FetchPlan plan =
        make_plan({done_.attended, done_.selected}, chosen_needs(problem_, result_.selection, done_.attended));
    const auto cached = cache_ ? std::make_optional(kernels::CachedRows{*cache_, tokens_}) : std::nullopt;
    const bool unites = policy_.fusion == Fusion::kUnion;  // weighs keys, not chunks: by no record
    WaveWork work;
    work.attend = [&](RowRange rows) {
      if (unites) {
        kernels::attend_union(problem_, grid_, shard_.queries(), result_.selection, rows, table_, out(), lse(),
                              options_.threads);
      } else {
        kernels::attend_chunks(problem_, grid_, shard_.queries(), scoring_queries(), result_.selection, rows, table_,
                               records, out(), lse(), options_.threads, cached ? &*cached : nullptr);
      }
    };
    if (result_.merge == Merge::kScores && !unites) {  // otherwise every record is here
      work.start_more = [&](RowRange rows) { record_fetcher.start(chosen_in(result_.selection, rows)); };
      work.wait_more = [&] { record_fetcher.wait(); };
    }
    waves().run("attend", plan, done_.attended, work);
    result_.bytes_merged += record_fetcher.bytes();
  }

  void meet_at_the_end() {
    const bool rows_are_left = done_.attended < shard_.rows();
    const double share_done = share(done_.windowed + done_.selected + done_.attended, 3);
    result_.stopped = meeting_.any("end of the layer", rows_are_left, share_done);
  }

  // What a stopped run keeps is without them: whoever finishes the layer adds them to all rows, once.
  void absorb_sinks() {
    if (!result_.stopped) kernels::absorb_sinks(problem_.sink_logits, out(), lse(), options_.threads);
  }

  void keep_state(const LandmarkTable& landmarks) {
    if (result_.stopped || !options_.keep) return;
    options_.keep({grid_, layout_.chunks_of(rank_), block_arena_, landmarks.own_records(), result_.selection});
  }

  // What `done` rows are of all rows in so many stages. The tile that would be next counts: before the first one some
  // time has passed too.
  double share(std::int64_t done, std::int64_t stages) const {
    const std::int64_t all = shard_.rows() * stages;
    return all == 0 ? 1.0 : std::min(1.0, static_cast<double>(done + options_.tile_rows) / static_cast<double>(all));
  }

  // hils scores with the retrieval queries, whose calibration was trained for it.
  RowsView scoring_queries() const {
    return policy_.scorer == Scorer::kHils ? shard_.retrieval_queries() : shard_.queries();
  }

  FetchPlan make_plan(RowRange rows, const RowNeeds& needs) {
    const auto span = result_.clock.time("plan");
    FetchPlan plan = plan_fetch(problem_, layout_, rank_, rows, needs, options_.fetch_budget);
    result_.bytes_fetched += plan.blocks * table_.shape().bytes();
    return plan;
  }

  BlockWaves waves() {
    return {transport_, kBlockRegion, table_, result_.clock, progress_, options_.tile_rows, options_.stop};
  }

  TensorView<float, 3> out() { return {result_.out.data(), {shard_.rows(), problem_.heads, problem_.head_dim}}; }
  TensorView<float, 2> lse() { return {result_.lse.data(), {shard_.rows(), problem_.heads}}; }

  comm::Communicator& communicator_;
  comm::BlockTransport& transport_;
  const AttentionProblem& problem_;
  const AttentionPolicy& policy_;
  const partition::Layout& layout_;
  RankId rank_;
  LayerShard& shard_;
  const PrefillOptions& options_;
  ProgressSink& progress_;
  SequenceGrid grid_;
  std::vector<TokenId> tokens_;
  std::optional<kernels::CachePositions> cache_;  // only with stingy landmark positions
  BlockTable table_;
  comm::Bytes block_arena_;
  PrefillResult result_;
  RowsDone& done_;  // of the result
  Meeting meeting_;
};

}  // namespace

std::int64_t exposed_bytes(const AttentionProblem& problem, const AttentionPolicy& policy, std::int64_t chunks) {
  return BlockStore::bytes_of(problem, chunks) +
         LandmarkTable::bytes_of(kernels::LandmarkShape::of(problem, policy.scorer), chunks);
}

PrefillResult prefill(comm::Communicator& communicator, comm::BlockTransport& transport,
                      const AttentionProblem& problem, const AttentionPolicy& policy, const partition::Layout& layout,
                      LayerShard& shard, const PrefillOptions& options, ProgressSink& progress, PrefillResult begun) {
  return Prefill(communicator, transport, problem, policy, layout, shard, options, progress, std::move(begun)).run();
}

}  // namespace ringmark::runtime
