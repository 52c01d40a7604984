#include "runtime/logo/prefill.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>

#include "core/error.h"
#include "kernels/absorb_sinks.h"
#include "kernels/attend_window.h"
#include "kernels/fuse_branches.h"
#include "runtime/agreement.h"
#include "runtime/block_exposure.h"
#include "runtime/block_waves.h"
#include "runtime/dense/memory_plan.h"
#include "runtime/fetch_plan.h"
#include "runtime/meeting.h"
#include "runtime/row_needs.h"

namespace ringmark::runtime::logo {
namespace {

constexpr int kBlockRegion = 0;           // of the transport
constexpr std::int64_t kTileRows = 4096;  // between two looks at the progress

// Queries of some rows behind each other, as the global branch takes them.
class PackedQueries {
 public:
  PackedQueries(const RowsView& queries, std::span<const std::int64_t> rows, const BranchWeights& weights)
      : rows_(std::ssize(rows)), heads_(queries.heads), head_dim_(queries.head_dim) {
    // A transformed query is not rounded back to the type of the layer.
    dtype_ = weights.transforms() ? DType::kFloat32 : queries.dtype;
    const auto row_bytes = static_cast<std::size_t>(heads_ * head_dim_ * size_of(dtype_));
    bytes_.resize(rows.size() * row_bytes);
    for (std::size_t n = 0; n < rows.size(); ++n) {
      std::byte* to = bytes_.data() + n * row_bytes;
      if (weights.transforms()) {
        transform(queries, rows[n], weights, reinterpret_cast<float*>(to));
      } else {
        std::memcpy(to, queries.row(rows[n], 0), row_bytes);
      }
    }
  }

  RowsView view() const { return {bytes_.data(), dtype_, rows_, heads_, head_dim_}; }

 private:
  void transform(const RowsView& queries, std::int64_t row, const BranchWeights& weights, float* to) const {
    const std::int64_t width = heads_ * head_dim_;
    widen(queries.row(row, 0), queries.dtype, width, to);
    for (std::int64_t k = 0; k < width; ++k) {
      const auto at = static_cast<std::size_t>(k);
      if (!weights.global_scale.empty()) to[k] *= weights.global_scale[at];
      if (!weights.global_offset.empty()) to[k] += weights.global_offset[at];
    }
  }

  std::int64_t rows_;
  std::int64_t heads_;
  std::int64_t head_dim_;
  DType dtype_;
  std::vector<std::byte> bytes_;
};

class Prefill {
 public:
  Prefill(comm::Communicator& communicator, comm::BlockTransport& transport, const AttentionProblem& problem,
          const AttentionPolicy& policy, const partition::Layout& layout, LayerShard& shard,
          std::span<const float> gates, const Options& options, ProgressSink& progress)
      : communicator_(communicator),
        transport_(transport),
        problem_(problem),
        layout_(layout),
        rank_(communicator.rank()),
        shard_(shard),
        gates_(gates),
        options_(options),
        progress_(progress),
        local_grid_(problem, policy),
        global_grid_(problem, dense::whole_window(problem)),
        tokens_(layout.tokens_of(rank_)),
        table_(kernels::BlockShape::of(problem), local_grid_.chunk_count(), problem.kv_heads),
        meeting_(communicator, local_grid_, layout) {
    require(std::ssize(gates) == shard.rows(), "every row has a gate");
    result_.clock.record_in(options.global.trace);
  }

  Result run() {
    store_blocks();                                          // K, V of my chunks, in memory that peers may read
    transport_.publish();                                    // from here on peers read
    attend_window();                                         // O, lse of the local branch
    const std::vector<std::int64_t> rows = selected_rows();  // whose gate is above the threshold
    const dense::Result global = attend_globally(rows);      // O, lse of the global branch, of these rows
    fuse(rows, global);                                      // normalised, mixed by the gate
    transport_.retire();                                     // nobody reads any more
    return std::move(result_);
  }

 private:
  void store_blocks() {
    const auto span = result_.clock.time("store");
    expose_blocks(transport_, problem_, local_grid_, layout_, rank_, shard_, table_);
  }

  void attend_window() {
    // A row that no kernel wrote must not look like a result.
    constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();
    result_.out.resize(static_cast<std::size_t>(shard_.rows() * problem_.heads * problem_.head_dim), kUnwritten);
    result_.lse.resize(static_cast<std::size_t>(shard_.rows() * problem_.heads), kUnwritten);
    FetchPlan plan;
    {
      const auto span = result_.clock.time("plan");
      agree(communicator_, "plan the fetch", [&] {
        plan = plan_fetch(problem_, layout_, rank_, {0, shard_.rows()}, window_needs(problem_, local_grid_, tokens_),
                          options_.global.fetch_budget);
      });
    }
    result_.bytes_fetched = plan.blocks * table_.shape().bytes();
    const BlockWaves waves{transport_, kBlockRegion, table_, result_.clock, progress_, kTileRows, never_};
    std::int64_t done = 0;
    waves.run("window", plan, done, {.attend = [&](RowRange rows) {
                kernels::attend_window(problem_, local_grid_, shard_.queries(), tokens_, rows, table_, out(), lse(),
                                       options_.global.threads);
              }});
    meeting_.meet("after the window");
  }

  // Collective.
  std::vector<std::int64_t> selected_rows() {
    std::vector<std::int64_t> rows;
    for (std::int64_t row = 0; row < shard_.rows(); ++row) {
      if (gates_[static_cast<std::size_t>(row)] > options_.threshold) rows.push_back(row);
    }
    std::array<std::int64_t, 1> selected = {std::ssize(rows)};
    communicator_.all_reduce_sum("rows that attend globally", selected);
    result_.selected = selected[0];
    return rows;
  }

  // Collective. Where no rank has such a row no key moves.
  dense::Result attend_globally(std::span<const std::int64_t> rows) {
    if (result_.selected == 0) return {};
    const PackedQueries queries(shard_.queries(), rows, options_.weights);
    std::vector<TokenId> tokens;
    for (const std::int64_t row : rows) tokens.push_back(tokens_[static_cast<std::size_t>(row)]);
    dense::Result global = dense::attend_rows(communicator_, problem_, global_grid_, layout_, queries.view(), tokens,
                                              table_, options_.global, progress_);
    for (const char* stage : {"fetch", "attend", "merge"}) result_.clock.add(stage, global.clock.seconds(stage));
    result_.received = global.received;
    return global;
  }

  void fuse(std::span<const std::int64_t> rows, const dense::Result& global) {
    const auto span = result_.clock.time("fuse");
    kernels::fuse_branches(out(), lse(),
                           {rows,
                            {global.out.data(), {std::ssize(rows), problem_.heads, problem_.head_dim}},
                            {global.lse.data(), {std::ssize(rows), problem_.heads}}},
                           gates_, {options_.weights.local_norm, options_.weights.global_norm},
                           options_.global.threads);
    kernels::absorb_sinks(problem_.sink_logits, out(), lse(), options_.global.threads);
  }

  TensorView<float, 3> out() { return {result_.out.data(), {shard_.rows(), problem_.heads, problem_.head_dim}}; }
  TensorView<float, 2> lse() { return {result_.lse.data(), {shard_.rows(), problem_.heads}}; }

  comm::Communicator& communicator_;
  comm::BlockTransport& transport_;
  const AttentionProblem& problem_;
  const partition::Layout& layout_;
  RankId rank_;
  LayerShard& shard_;
  std::span<const float> gates_;
  const Options& options_;
  ProgressSink& progress_;
  partition::SequenceGrid local_grid_;
  partition::SequenceGrid global_grid_;
  std::vector<TokenId> tokens_;
  kernels::BlockTable table_;
  Meeting meeting_;
  std::function<bool()> never_ = [] { return false; };
  Result result_;
};

}  // namespace

Result prefill(comm::Communicator& communicator, comm::BlockTransport& transport, const AttentionProblem& problem,
               const AttentionPolicy& policy, const partition::Layout& layout, LayerShard& shard,
               std::span<const float> gates, const Options& options, ProgressSink& progress) {
  return Prefill(communicator, transport, problem, policy, layout, shard, gates, options, progress).run();
}

MemoryPlan plan_memory(const AttentionProblem& problem, const ShardSize& shard, bool has_retrieval_queries,
                       const Options& options) {
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  MemoryPlan plan = dense::plan_memory(problem, shard, has_retrieval_queries, options.global);
  const std::int64_t head_rows = shard.rows * problem.heads;
  const std::int64_t element = options.weights.transforms() ? kFloat : size_of(problem.dtype);
  plan.items.push_back({"packed queries", head_rows * problem.head_dim * element});
  plan.items.push_back({"global results", head_rows * (problem.head_dim + 1) * kFloat});
  plan.items.push_back({"gates and rows", shard.rows * (kFloat + 3 * 8)});
  if (shard.ranks > 1) plan.items.push_back({"fetched window", options.global.fetch_budget});
  return plan;
}

}  // namespace ringmark::runtime::logo
