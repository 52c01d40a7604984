#include "runtime/dense/prefill.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "core/error.h"
#include "kernels/absorb_sinks.h"
#include "kernels/attend_causal.h"
#include "kvstore/block_store.h"
#include "runtime/dense/head_exchange.h"

namespace ringmark::runtime::dense {
namespace {

// Attention of a rank by how many (query, key chunk) pairs and heads it has.
std::vector<std::int64_t> work_by_rank(const AttentionProblem& problem, const partition::SequenceGrid& grid,
                                       const partition::Layout& layout, int group) {
  const std::vector<std::int64_t> pairs = partition::measure_balance(grid, layout).pairs;
  std::vector<std::int64_t> work;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    std::int64_t of_group = 0;
    for (int member = rank / group * group; member < (rank / group + 1) * group; ++member) {
      of_group += pairs[static_cast<std::size_t>(member)];
    }
    work.push_back(of_group * head_share(problem, rank % group, group).heads.size());
  }
  return work;
}

class Prefill {
 public:
  Prefill(comm::Communicator& communicator, const AttentionProblem& problem, const partition::SequenceGrid& grid,
          const partition::Layout& layout, LayerShard& shard, const Options& options, ProgressSink& progress)
      : communicator_(communicator),
        problem_(problem),
        grid_(grid),
        layout_(layout),
        rank_(communicator.rank()),
        shard_(shard),
        options_(options),
        progress_(progress),
        meeting_(communicator, work_by_rank(problem, grid, layout, options.ulysses_ranks)) {
    require(communicator.size() % options.ulysses_ranks == 0, "groups of heads divide the ranks");
    result_.clock.record_in(options.trace);
  }

  Result run() {
    // A row that no kernel wrote must not look like a result.
    constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();
    result_.out.assign(static_cast<std::size_t>(shard_.rows() * problem_.heads * problem_.head_dim), kUnwritten);
    result_.lse.assign(static_cast<std::size_t>(shard_.rows() * problem_.heads), kUnwritten);
    store_blocks();
    if (options_.ulysses_ranks == 1) {
      attend_for_all_heads();
    } else {
      attend_for_some_heads();
    }
    kernels::absorb_sinks(problem_.sink_logits, out(), lse(), options_.threads);
    meeting_.meet("end of the layer");
    return std::move(result_);
  }

 private:
  void store_blocks() {
    const auto span = result_.clock.time("store");
    const auto chunks = static_cast<std::int64_t>(layout_.chunks_of(rank_).size());
    blocks_.resize(static_cast<std::size_t>(kvstore::BlockStore::bytes_of(problem_, chunks)));
    store_ =
        std::make_unique<kvstore::BlockStore>(problem_, grid_, layout_, rank_, shard_.keys(), shard_.values(), blocks_);
    shard_.release_keys_and_values();
  }

  void attend_for_all_heads() {
    kernels::BlockTable table(kernels::BlockShape::of(problem_), grid_.chunk_count(), problem_.kv_heads);
    store_->list_in(table);
    Team team;
    team.place = communicator_.rank();
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      team.ranks.push_back(rank);
      team.chunks.push_back(layout_.chunks_of(RankId(rank)));
    }
    attend(team, shard_.queries(), layout_.tokens_of(rank_), kernels::head_groups(problem_), problem_.kv_heads, table,
           out(), lse(), 0);
  }

  void attend_for_some_heads() {
    HeadExchange heads(communicator_, problem_, layout_, options_.ulysses_ranks);
    {
      const auto span = result_.clock.time("exchange");
      heads.bring(shard_.queries(), blocks_, result_.received);
    }
    store_.reset();
    std::vector<std::byte>().swap(blocks_);
    const HeadShare& share = heads.share();
    kernels::BlockTable table(kernels::BlockShape::of(problem_), grid_.chunk_count(), share.kv_heads.size());
    heads.list_in(table);
    const RowsView queries = heads.queries();
    std::vector<float> out_of_share(static_cast<std::size_t>(queries.rows * queries.heads * queries.head_dim));
    std::vector<float> lse_of_share(static_cast<std::size_t>(queries.rows * queries.heads));
    const TensorView<float, 3> share_out(out_of_share.data(), {queries.rows, queries.heads, queries.head_dim});
    const TensorView<float, 2> share_lse(lse_of_share.data(), {queries.rows, queries.heads});
    attend(team_of_same_heads(), queries, heads.tokens(), share.groups, share.kv_heads.size(), table, share_out,
           share_lse, share.heads.begin);
    const auto span = result_.clock.time("exchange");
    heads.give_back({share_out.data(), {queries.rows, queries.heads, queries.head_dim}},
                    {share_lse.data(), {queries.rows, queries.heads}}, out(), lse(), meeting_.allowance(),
                    result_.received);
  }

  // One rank of every group.
  Team team_of_same_heads() const {
    const int group = options_.ulysses_ranks;
    Team team;
    team.place = communicator_.rank() / group;
    for (int first = 0; first < communicator_.size(); first += group) {
      team.ranks.push_back(first + communicator_.rank() % group);
      std::vector<ChunkId> chunks;
      for (int member = first; member < first + group; ++member) {
        const std::vector<ChunkId>& of_member = layout_.chunks_of(RankId(member));
        chunks.insert(chunks.end(), of_member.begin(), of_member.end());
      }
      std::sort(chunks.begin(), chunks.end());
      team.chunks.push_back(std::move(chunks));
    }
    return team;
  }

  void attend(const Team& team, const RowsView& queries, const std::vector<TokenId>& tokens,
              const std::vector<kernels::HeadGroup>& groups, std::int64_t kv_heads, kernels::BlockTable& table,
              TensorView<float, 3> out, TensorView<float, 2> lse, std::int64_t first_head) {
    std::vector<float> sums(static_cast<std::size_t>(queries.rows * queries.heads));
    const kernels::CausalQueries asking{problem_, grid_, queries, tokens, groups, first_head};
    const TeamWork work{communicator_,
                        team,
                        asking,
                        kv_heads,
                        table,
                        {out, lse, {sums.data(), {queries.rows, queries.heads}}},
                        options_.fetch_budget,
                        options_.threads,
                        meeting_,
                        result_.received,
                        result_.clock,
                        progress_};
    kernels::start_softmax(work.softmax);
    switch (options_.strategy) {
      case Strategy::kPassQ: return attend_by_visits(work);
      case Strategy::kAllGather: return attend_by_gather(work);
      default: return attend_by_ring(work);  // ulysses: a ring of one place
    }
  }

  TensorView<float, 3> out() { return {result_.out.data(), {shard_.rows(), problem_.heads, problem_.head_dim}}; }
  TensorView<float, 2> lse() { return {result_.lse.data(), {shard_.rows(), problem_.heads}}; }

  comm::Communicator& communicator_;
  const AttentionProblem& problem_;
  const partition::SequenceGrid& grid_;
  const partition::Layout& layout_;
  RankId rank_;
  LayerShard& shard_;
  const Options& options_;
  ProgressSink& progress_;
  Meeting meeting_;
  std::vector<std::byte> blocks_;
  std::unique_ptr<kvstore::BlockStore> store_;
  Result result_;
};

}  // namespace

Result prefill(comm::Communicator& communicator, const AttentionProblem& problem, const partition::SequenceGrid& grid,
               const partition::Layout& layout, LayerShard& shard, const Options& options, ProgressSink& progress) {
  return Prefill(communicator, problem, grid, layout, shard, options, progress).run();
}

}  // namespace ringmark::runtime::dense
