#include "runtime/backward.h"

#include <algorithm>
#include <string>

#include "comm/current_step.h"
#include "core/error.h"
#include "kernels/attend_backward.h"
#include "kernels/landmark_backward.h"
#include "kvstore/landmark_table.h"
#include "partition/sequence_grid.h"
#include "runtime/block_exposure.h"
#include "runtime/block_waves.h"
#include "runtime/fetch_plan.h"
#include "runtime/gradient_exchange.h"
#include "runtime/landmark_fetcher.h"
#include "runtime/landmark_rows.h"
#include "runtime/meeting.h"

namespace ringmark::runtime {
namespace {

using kernels::ReaderCount;
using kvstore::LandmarkTable;

// Regions of the transport, in the order in which they are exposed.
constexpr int kBlockRegion = 0;
constexpr int kLandmarkRegion = 1;

class Backward {
 public:
  Backward(comm::Communicator& communicator, comm::BlockTransport& transport, const AttentionProblem& problem,
           const AttentionPolicy& policy, const partition::Layout& layout, LayerShard& shard,
           const ForwardRows& forward, std::span<const float> out_gradient, const BackwardOptions& options,
           ProgressSink& progress)
      : communicator_(communicator),
        transport_(transport),
        problem_(problem),
        policy_(policy),
        layout_(layout),
        rank_(communicator.rank()),
        shard_(shard),
        forward_(forward),
        out_gradient_(out_gradient),
        options_(options),
        progress_(progress),
        grid_(problem, policy),
        tokens_(layout.tokens_of(rank_)),
        blocks_(kernels::BlockShape::of(problem), grid_.chunk_count(), problem.kv_heads),
        gradients_(kernels::GradientShape::of(problem, policy), grid_.chunk_count(), problem.kv_heads),
        separate_(scores_with_own_queries(policy, shard)) {
    result_.clock.record_in(options.trace);
  }

  BackwardResult run() {
    store_blocks();                               // K, V of my chunks, in memory that peers may read
    LandmarkTable landmarks = build_landmarks();  // k', b' per chunk and head, as the forward had them
    transport_.publish();                         // from here on peers read
    prepare_rows();                               // Delta of every row; gradients of zero
    records_ = landmarks.records();
    LandmarkFetcher fetcher(transport_, kLandmarkRegion, layout_, records_);
    const std::int64_t step = stretch_chunks(problem_, policy_, layout_.ranks(), options_.gradient_budget);
    for (ChunkId begin(0); begin < ChunkId(grid_.chunk_count()); begin = begin + step) {
      stretch_ = {begin, std::min(begin + step, ChunkId(grid_.chunk_count()))};
      run_stretch(landmarks, fetcher);
    }
    result_.bytes_fetched += fetcher.bytes();
    transport_.retire();  // nobody reads any more
    return std::move(result_);
  }

 private:
  void store_blocks() {
    const auto span = result_.clock.time("landmarks");
    expose_blocks(transport_, problem_, grid_, layout_, rank_, shard_, blocks_);
  }

  LandmarkTable build_landmarks() {
    const auto span = result_.clock.time("landmarks");
    const auto shape = kernels::LandmarkShape::of(problem_, policy_.selects() ? policy_.scorer : Scorer::kNone);
    const std::span<const ChunkId> chunks = layout_.chunks_of(rank_);
    LandmarkTable landmarks(shape, grid_, layout_, rank_,
                            transport_.expose(LandmarkTable::bytes_of(shape, std::ssize(chunks))));
    if (!policy_.selects()) return landmarks;
    std::fill(landmarks.own_records().begin(), landmarks.own_records().end(), 0.0f);
    landmark_rows_ = landmark_rows(grid_, layout_, chunks, shard_);
    kernels::build_landmarks(problem_, policy_.scorer, grid_, chunks, landmark_queries({0, std::ssize(chunks)}),
                             blocks_, landmarks.own_records(), options_.threads);
    return landmarks;
  }

  // Of some of this rank's chunks, by their slots.
  RowsView landmark_queries(RowRange slots) const {
    const RowsView all{landmark_rows_.data(), problem_.dtype, std::ssize(layout_.chunks_of(rank_)), problem_.heads,
                       problem_.head_dim};
    return policy_.selects() ? all.slice(slots.begin, slots.end) : RowsView{};
  }

  void prepare_rows() {
    const auto span = result_.clock.time("attend");
    const auto queries = static_cast<std::size_t>(shard_.rows() * problem_.heads * problem_.head_dim);
    const auto keys = static_cast<std::size_t>(shard_.rows() * problem_.kv_heads * problem_.head_dim);
    delta_.resize(forward_.lse.size());
    result_.query_gradient.assign(queries, 0.0f);
    result_.retrieval_gradient.assign(separate_ ? queries : 0, 0.0f);
    result_.key_gradient.assign(keys, 0.0f);
    result_.value_gradient.assign(keys, 0.0f);
    const TensorView<const float, 3>::Extents shape = {shard_.rows(), problem_.heads, problem_.head_dim};
    kernels::row_deltas({forward_.out.data(), shape}, {out_gradient_.data(), shape},
                        {delta_.data(), {shard_.rows(), problem_.heads}}, options_.threads);
  }

  // The gradients of these chunks' keys, and what they do to the queries of this rank.
  void run_stretch(const LandmarkTable& landmarks, LandmarkFetcher& fetcher) {
    const comm::EnterStep entered("stretch", result_.stretches);
    count_readers();
    const Meeting meeting(communicator_, work_by_rank());
    std::vector<char> reads;
    for (const ReaderCount& count : readers_) reads.push_back(count.nearby + count.chosen > 0);
    GradientExchange exchange(layout_, rank_, stretch_, problem_.kv_heads, reads, gradients_);
    attend(fetcher);
    {
      const auto span = result_.clock.time("exchange");
      result_.bytes_gradients += exchange.send_home(communicator_, meeting);
    }
    finish(exchange.own_chunks(), landmarks);
    ++result_.stretches;
  }

  void count_readers() {
    const auto span = result_.clock.time("plan");
    readers_ = kernels::count_readers(rows(), stretch_, options_.threads);
  }

  // Collective: (row, block) pairs of the stretch.
  std::vector<std::int64_t> work_by_rank() {
    std::int64_t pairs = 0;
    for (const ReaderCount& count : readers_) pairs += count.nearby + count.chosen;
    return communicator_.gather_sizes("share out the work", pairs);
  }

  void attend(LandmarkFetcher& fetcher) {
    const FetchPlan plan = make_plan();
    WaveWork work;
    work.attend = [&](RowRange chunks) { differentiate({ChunkId(chunks.begin), ChunkId(chunks.end)}); };
    if (policy_.selects()) {
      work.start_more = [&](RowRange chunks) {
        fetcher.start(chosen_in({ChunkId(chunks.begin), ChunkId(chunks.end)}));
      };
      work.wait_more = [&] { fetcher.wait(); };
    }
    const std::function<bool()> never = [] { return false; };
    const BlockWaves waves{transport_, kBlockRegion, blocks_, result_.clock, progress_, options_.tile_chunks, never};
    std::int64_t done = stretch_.begin.value();
    waves.run("attend", plan, done, work);
  }

  // The waves are ranges of chunks here: each block is read once.
  FetchPlan make_plan() {
    const auto span = result_.clock.time("plan");
    const auto needs = [&](std::int64_t chunk, std::vector<BlockId>& blocks) {
      for (std::int64_t kv_head = 0; kv_head < problem_.kv_heads; ++kv_head) {
        const ReaderCount& count = readers_of(ChunkId(chunk), kv_head);
        if (count.nearby + count.chosen > 0) blocks.push_back({ChunkId(chunk), kv_head});
      }
      return true;
    };
    FetchPlan plan = plan_fetch(problem_, layout_, rank_, {stretch_.begin.value(), stretch_.end.value()}, needs,
                                options_.fetch_budget, options_.tile_chunks);
    result_.bytes_fetched += plan.blocks * blocks_.shape().bytes();
    return plan;
  }

  std::vector<ChunkId> chosen_in(Range<ChunkId> chunks) const {
    std::vector<ChunkId> chosen;
    for (ChunkId chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      for (std::int64_t kv_head = 0; kv_head < problem_.kv_heads; ++kv_head) {
        if (readers_of(chunk, kv_head).chosen == 0) continue;
        chosen.push_back(chunk);
        break;
      }
    }
    return chosen;
  }

  void differentiate(Range<ChunkId> chunks) {
    const TensorView<float, 3> queries = gradient_rows(result_.query_gradient);
    kernels::query_gradients(rows(), chunks, blocks_, records_, queries,
                             separate_ ? gradient_rows(result_.retrieval_gradient) : queries, options_.threads);
    kernels::key_gradients(rows(), chunks, blocks_, records_, gradients_, options_.threads);
  }

  // All rows of all ranks have added to these chunks: on through their landmarks, and into the rows of the shard.
  void finish(std::span<const ChunkId> chunks, const LandmarkTable& landmarks) {
    const auto span = result_.clock.time("finish");
    if (chunks.empty()) return;
    if (policy_.selects()) through_landmarks(chunks, landmarks);
    for (const ChunkId chunk : chunks) {
      for (std::int64_t kv_head = 0; kv_head < problem_.kv_heads; ++kv_head) store(chunk, kv_head);
    }
  }

  void through_landmarks(std::span<const ChunkId> chunks, const LandmarkTable& landmarks) {
    const std::int64_t slot = layout_.slot(chunks.front());
    const auto record = static_cast<std::size_t>(landmarks.shape().record_floats());
    const std::int64_t width = problem_.heads * problem_.head_dim;
    std::vector<float> reached(chunks.size() * static_cast<std::size_t>(width));
    kernels::landmark_gradients(
        problem_, policy_.scorer, grid_, chunks, landmark_queries({slot, slot + std::ssize(chunks)}), blocks_,
        landmarks.own_records().subspan(static_cast<std::size_t>(slot) * record, chunks.size() * record), gradients_,
        {reached.data(), {std::ssize(chunks), problem_.heads, problem_.head_dim}}, options_.threads);
    std::vector<float>& queries = separate_ ? result_.retrieval_gradient : result_.query_gradient;
    for (std::size_t n = 0; n < chunks.size(); ++n) {
      float* const into = queries.data() + last_row(grid_, layout_, chunks[n]) * width;
      const float* const from = reached.data() + static_cast<std::int64_t>(n) * width;
      for (std::int64_t x = 0; x < width; ++x) into[x] += from[x];
    }
  }

  void store(ChunkId chunk, std::int64_t kv_head) {
    const float* const record = gradients_.of(chunk, kv_head);
    const std::int64_t first = layout_.first_row(chunk);
    for (std::int64_t slot = 0; slot < grid_.tokens_of(chunk).size(); ++slot) {
      const std::int64_t at = ((first + slot) * problem_.kv_heads + kv_head) * problem_.head_dim;
      const float* const key = record + slot * problem_.head_dim;
      std::copy_n(key, problem_.head_dim, result_.key_gradient.data() + at);
      std::copy_n(key + gradients_.shape().values_at(), problem_.head_dim, result_.value_gradient.data() + at);
    }
  }

  kernels::BackwardRows rows() const {
    const std::int64_t count = shard_.rows();
    return {problem_,
            grid_,
            shard_.queries(),
            policy_.scorer == Scorer::kHils ? shard_.retrieval_queries() : shard_.queries(),
            tokens_,
            forward_.selection,
            {out_gradient_.data(), {count, problem_.heads, problem_.head_dim}},
            {forward_.lse.data(), {count, problem_.heads}},
            {delta_.data(), {count, problem_.heads}}};
  }
  TensorView<float, 3> gradient_rows(std::vector<float>& gradient) const {
    return {gradient.data(), {shard_.rows(), problem_.heads, problem_.head_dim}};
  }
  const ReaderCount& readers_of(ChunkId chunk, std::int64_t kv_head) const {
    return readers_[static_cast<std::size_t>((chunk - stretch_.begin) * problem_.kv_heads + kv_head)];
  }

  comm::Communicator& communicator_;
  comm::BlockTransport& transport_;
  const AttentionProblem& problem_;
  const AttentionPolicy& policy_;
  const partition::Layout& layout_;
  RankId rank_;
  LayerShard& shard_;
  const ForwardRows& forward_;
  std::span<const float> out_gradient_;
  const BackwardOptions& options_;
  ProgressSink& progress_;
  partition::SequenceGrid grid_;
  std::vector<TokenId> tokens_;
  kernels::BlockTable blocks_;
  kernels::GradientTable gradients_;  // of the stretch
  bool separate_;                     // retrieval queries have gradients of their own
  std::vector<std::byte> landmark_rows_;
  kernels::LandmarkRecords records_;
  std::vector<float> delta_;
  Range<ChunkId> stretch_;
  std::vector<ReaderCount> readers_;  // of the stretch
  BackwardResult result_;
};

}  // namespace

void check_backward(const AttentionProblem& problem, const AttentionPolicy& policy) {
  const auto refuse = [](const std::string& what) { fail_bad_input(what + " has no backward pass"); };
  const bool known = policy.scorer == Scorer::kHils || policy.scorer == Scorer::kMean || policy.scorer == Scorer::kNone;
  if (!known) refuse("scorer " + std::string(name_of(policy.scorer)));
  if (policy.choice != Choice::kGroup) refuse("choice " + std::string(name_of(policy.choice)));
  if (policy.fusion != Fusion::kHierarchical) refuse("fusion " + std::string(name_of(policy.fusion)));
  if (policy.edge != WindowEdge::kChunk) refuse("a window with edge " + std::string(name_of(policy.edge)));
  if (problem.logit_cap != 0.0f) refuse("logit_cap = " + std::to_string(problem.logit_cap));
  if (problem.alibi) refuse("alibi");
  if (!problem.sink_logits.empty()) refuse("sink_logits");
}

bool scores_with_own_queries(const AttentionPolicy& policy, const LayerShard& shard) {
  return policy.selects() && policy.scorer == Scorer::kHils && shard.retrieval_queries().data != shard.queries().data;
}

std::int64_t gradient_bytes(const AttentionProblem& problem, const AttentionPolicy& policy) {
  return problem.kv_heads * kernels::GradientShape::of(problem, policy).floats() *
         static_cast<std::int64_t>(sizeof(float));
}

std::int64_t stretch_chunks(const AttentionProblem& problem, const AttentionPolicy& policy, int ranks,
                            std::int64_t budget) {
  return std::max<std::int64_t>(1, budget / (gradient_bytes(problem, policy) * (ranks + 1)));
}

BackwardResult backward(comm::Communicator& communicator, comm::BlockTransport& transport,
                        const AttentionProblem& problem, const AttentionPolicy& policy, const partition::Layout& layout,
                        LayerShard& shard, const ForwardRows& forward, std::span<const float> out_gradient,
                        const BackwardOptions& options, ProgressSink& progress) {
  check_backward(problem, policy);
  require(shard.landmark_queries().rows == 0, "landmark queries with a backward pass are rows of the sequence");
  return Backward(communicator, transport, problem, policy, layout, shard, forward, out_gradient, options, progress)
      .run();
}

}  // namespace ringmark::runtime
