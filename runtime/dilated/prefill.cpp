#include "runtime/dilated/prefill.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "kernels/absorb_sinks.h"
#include "kernels/attend_dilated.h"
#include "kernels/merge_partials.h"
#include "runtime/agreement.h"
#include "runtime/block_exposure.h"
#include "runtime/block_waves.h"
#include "runtime/dense/prefill.h"
#include "runtime/fetch_plan.h"
#include "runtime/meeting.h"

namespace ringmark::runtime::dilated {
namespace {

using kernels::Dilation;
using partition::SequenceGrid;

constexpr int kBlockRegion = 0;             // of the transport
constexpr std::int64_t kShortestWave = 16;  // stretches

// Of every rank its rows times the keys that take part before them, by chunk, in units of a chunk's tokens squared.
std::vector<std::int64_t> work_by_rank(const SequenceGrid& grid, const partition::Layout& layout,
                                       std::span<const Dilation> dilations) {
  std::vector<std::int64_t> work;
  for (RankId rank(0); rank < RankId(layout.ranks()); ++rank) {
    double of_rank = 0.0;
    for (const ChunkId chunk : layout.chunks_of(rank)) {
      const TokenId last = grid.tokens_of(chunk).end - 1;
      for (const Dilation& dilation : dilations) {
        const auto keys = static_cast<double>(last - kernels::segment_of(grid, dilation, last).begin + 1);
        of_rank += keys / static_cast<double>(dilation.rate * dilation.rate * grid.chunk_size());
      }
    }
    work.push_back(1 + static_cast<std::int64_t>(of_rank));
  }
  return work;
}

// The blocks that a stretch holds for rows of this rank: those behind it in its segment.
RowNeeds stretch_needs(const AttentionProblem& problem, const SequenceGrid& grid, const Dilation& dilation,
                       std::span<const Range<TokenId>> stretches, std::span<const TokenId> tokens) {
  return [&, stretches, tokens](std::int64_t index, std::vector<BlockId>& needs) {
    const Range<TokenId>& stretch = stretches[static_cast<std::size_t>(index)];
    const TokenId segment_end = kernels::segment_of(grid, dilation, stretch.begin).end;
    const auto behind = std::lower_bound(tokens.begin(), tokens.end(), segment_end);
    if (behind == tokens.begin() || *(behind - 1) < stretch.begin) return true;
    const TokenId last = std::min(stretch.end - 1, *(behind - 1));
    for (ChunkId chunk = grid.chunk_of(stretch.begin); chunk <= grid.chunk_of(last); ++chunk) {
      for (std::int64_t head = 0; head < problem.kv_heads; ++head) needs.push_back({chunk, head});
    }
    return true;
  };
}

class Prefill {
 public:
  Prefill(comm::Communicator& communicator, comm::BlockTransport& transport, const AttentionProblem& problem,
          const SequenceGrid& grid, const partition::Layout& layout, LayerShard& shard, const Options& options,
          ProgressSink& progress)
      : communicator_(communicator),
        transport_(transport),
        problem_(problem),
        grid_(grid),
        layout_(layout),
        rank_(communicator.rank()),
        shard_(shard),
        options_(options),
        progress_(progress),
        tokens_(layout.tokens_of(rank_)),
        groups_(kernels::head_groups(problem)),
        table_(kernels::BlockShape::of(problem), grid.chunk_count(), problem.kv_heads),
        meeting_(communicator, work_by_rank(grid, layout, options.dilations)) {
    result_.clock.record_in(options.trace);
  }

  Result run() {
    store_blocks();
    transport_.publish();  // from here on peers read
    Partial all = attend(options_.dilations.front());
    for (std::size_t n = 1; n < options_.dilations.size(); ++n) {
      Partial more = attend(options_.dilations[n]);
      const auto span = result_.clock.time("merge");
      kernels::merge_partials(out(all), lse(all), {more.out.data(), {shard_.rows(), problem_.heads, problem_.head_dim}},
                              {more.lse.data(), {shard_.rows(), problem_.heads}});
    }
    kernels::absorb_sinks(problem_.sink_logits, out(all), lse(all), options_.threads);
    meeting_.meet("end of the layer");
    transport_.retire();  // nobody reads any more
    result_.out = std::move(all.out);
    result_.lse = std::move(all.lse);
    return std::move(result_);
  }

 private:
  // Of one pair, or of all so far.
  struct Partial {
    std::vector<float> out, lse;
  };

  void store_blocks() {
    const auto span = result_.clock.time("store");
    expose_blocks(transport_, problem_, grid_, layout_, rank_, shard_, table_);
  }

  Partial attend(const Dilation& dilation) {
    // A row that no kernel wrote must not look like a result.
    constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();
    const auto head_rows = static_cast<std::size_t>(shard_.rows() * problem_.heads);
    Partial partial{std::vector<float>(head_rows * static_cast<std::size_t>(problem_.head_dim), kUnwritten),
                    std::vector<float>(head_rows, kUnwritten)};
    std::vector<float> sums(head_rows, kUnwritten);
    const kernels::OpenSoftmax softmax{out(partial), lse(partial), {sums.data(), {shard_.rows(), problem_.heads}}};
    const kernels::CausalQueries queries{problem_, grid_, shard_.queries(), tokens_, groups_};
    const std::vector<Range<TokenId>> all_stretches = kernels::stretches_of(grid_, dilation);
    const std::span<const Range<TokenId>> stretches(all_stretches);
    const FetchPlan plan = make_plan(dilation, stretches);
    const BlockWaves waves{transport_, kBlockRegion, table_, result_.clock, progress_, std::ssize(stretches), never_};
    kernels::start_softmax(softmax);
    std::int64_t done = 0;
    waves.run("attend", plan, done, {.attend = [&](RowRange wave) {
                const auto first = static_cast<std::size_t>(wave.begin);
                kernels::attend_dilated(queries, dilation,
                                        stretches.subspan(first, static_cast<std::size_t>(wave.size())), table_,
                                        softmax, options_.threads);
              }});
    kernels::close_softmax(softmax);
    return partial;
  }

  // Its rows are stretches.
  FetchPlan make_plan(const Dilation& dilation, std::span<const Range<TokenId>> stretches) {
    const auto span = result_.clock.time("plan");
    FetchPlan plan;
    agree(communicator_, "plan the fetch", [&] {
      plan = plan_fetch(problem_, layout_, rank_, {0, std::ssize(stretches)},
                        stretch_needs(problem_, grid_, dilation, stretches, tokens_), options_.fetch_budget,
                        kShortestWave);
    });
    result_.bytes_fetched += plan.blocks * table_.shape().bytes();
    return plan;
  }

  TensorView<float, 3> out(Partial& of) const {
    return {of.out.data(), {shard_.rows(), problem_.heads, problem_.head_dim}};
  }
  TensorView<float, 2> lse(Partial& of) const { return {of.lse.data(), {shard_.rows(), problem_.heads}}; }

  comm::Communicator& communicator_;
  comm::BlockTransport& transport_;
  const AttentionProblem& problem_;
  const SequenceGrid& grid_;
  const partition::Layout& layout_;
  RankId rank_;
  LayerShard& shard_;
  const Options& options_;
  ProgressSink& progress_;
  std::vector<TokenId> tokens_;
  std::vector<kernels::HeadGroup> groups_;
  kernels::BlockTable table_;
  Meeting meeting_;
  std::function<bool()> never_ = [] { return false; };
  Result result_;
};

}  // namespace

Result prefill(comm::Communicator& communicator, comm::BlockTransport& transport, const AttentionProblem& problem,
               const SequenceGrid& grid, const partition::Layout& layout, LayerShard& shard, const Options& options,
               ProgressSink& progress) {
  return Prefill(communicator, transport, problem, grid, layout, shard, options, progress).run();
}

MemoryPlan plan_memory(const AttentionProblem& problem, const ShardSize& shard, bool has_retrieval_queries,
                       const Options& options) {
  PrefillOptions fetching;
  fetching.fetch_budget = options.fetch_budget;
  fetching.threads = options.threads;
  MemoryPlan plan = runtime::plan_memory(problem, dense::whole_window(problem), shard, has_retrieval_queries,
                                         Merge::kLandmarks, fetching);
  const auto float_bytes = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t sums = shard.rows * problem.heads * float_bytes;
  plan.items.push_back({"sums", sums});
  if (options.dilations.size() > 1) plan.items.push_back({"result of a pair", sums * (problem.head_dim + 1)});
  std::int64_t stretches = 0;  // of the pair that has most
  for (const Dilation& dilation : options.dilations) {
    const std::int64_t length = std::min(dilation.segment, kernels::kStretchKeys * dilation.rate);
    stretches = std::max(stretches, problem.tokens / length + problem.chunks_at_most());
  }
  plan.items.push_back({"stretches and tiles", stretches * 48 + shard.rows * 8});
  return plan;
}

}  // namespace ringmark::runtime::dilated
