#include "runtime/dense/prefill.h"

#include <algorithm>
#include <cstring>
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

// What all parts of one call share.
struct Job {
  comm::Communicator& communicator;
  const AttentionProblem& problem;
  const partition::SequenceGrid& grid;
  const Options& options;
  const Meeting& meeting;
  ProgressSink& progress;
  Result& result;  // received and clock
};

Team all_ranks(const comm::Communicator& communicator, const partition::Layout& layout) {
  Team team;
  team.place = communicator.rank();
  for (int rank = 0; rank < communicator.size(); ++rank) {
    team.ranks.push_back(rank);
    team.chunks.push_back(layout.chunks_of(RankId(rank)));
  }
  return team;
}

void attend(const Job& job, const Team& team, const RowsView& queries, std::span<const TokenId> tokens,
            std::span<const kernels::HeadGroup> groups, std::int64_t kv_heads, kernels::BlockTable& table,
            TensorView<float, 3> out, TensorView<float, 2> lse, std::int64_t first_head) {
  std::vector<float> sums(static_cast<std::size_t>(queries.rows * queries.heads));
  const kernels::CausalQueries asking{job.problem, job.grid, queries, tokens, groups, first_head};
  const TeamWork work{job.communicator,
                      team,
                      asking,
                      kv_heads,
                      table,
                      {out, lse, {sums.data(), {queries.rows, queries.heads}}},
                      job.options.fetch_budget,
                      job.options.threads,
                      job.meeting,
                      job.result.received,
                      job.result.clock,
                      job.progress};
  kernels::start_softmax(work.softmax);
  switch (job.options.strategy) {
    case Strategy::kPassQ: return attend_by_visits(work);
    case Strategy::kAllGather: return attend_by_gather(work);
    default: return attend_by_ring(work);  // ulysses: a ring of one place
  }
}

// A row that no kernel wrote must not look like a result.
void make_room(const AttentionProblem& problem, std::int64_t rows, Result& result) {
  constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();
  result.out.assign(static_cast<std::size_t>(rows * problem.heads * problem.head_dim), kUnwritten);
  result.lse.assign(static_cast<std::size_t>(rows * problem.heads), kUnwritten);
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
    make_room(problem_, shard_.rows(), result_);
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
    attend(job(), all_ranks(communicator_, layout_), shard_.queries(), layout_.tokens_of(rank_),
           kernels::head_groups(problem_), problem_.kv_heads, table, out(), lse(), 0);
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
    attend(job(), team_of_same_heads(), queries, heads.tokens(), share.groups, share.kv_heads.size(), table, share_out,
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

  Job job() { return {communicator_, problem_, grid_, options_, meeting_, progress_, result_}; }
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

// Chunks with keys for each row, of all rows, and the chunks that pass by: whoever has no row does not wait for ever.
std::int64_t pairs_of(const partition::SequenceGrid& grid, std::span<const TokenId> tokens) {
  std::int64_t pairs = grid.chunk_count();
  for (const TokenId token : tokens) {
    const ChunkId chunk = grid.chunk_of(token);
    pairs += chunk - grid.document_of(chunk).chunks.begin + 1;
  }
  return pairs;
}

// The tokens of every rank, by rank.
std::vector<std::vector<TokenId>> share_tokens(comm::Communicator& communicator, std::span<const TokenId> mine) {
  std::vector<std::vector<TokenId>> tokens;
  for (const std::vector<std::byte>& bytes : communicator.gather_bytes("rows that attend", std::as_bytes(mine))) {
    tokens.emplace_back(bytes.size() / sizeof(TokenId));
    if (!bytes.empty()) std::memcpy(tokens.back().data(), bytes.data(), bytes.size());
  }
  return tokens;
}

}  // namespace

Result attend_rows(comm::Communicator& communicator, const AttentionProblem& problem,
                   const partition::SequenceGrid& grid, const partition::Layout& layout, const RowsView& queries,
                   std::span<const TokenId> tokens, kernels::BlockTable& blocks, const Options& options,
                   ProgressSink& progress) {
  require(options.ulysses_ranks == 1, "groups of heads trade whole shards");
  Result result;
  result.clock.record_in(options.trace);
  make_room(problem, queries.rows, result);
  const Meeting meeting(communicator, communicator.gather_sizes("rows that attend", pairs_of(grid, tokens)));
  Team team = all_ranks(communicator, layout);
  if (options.strategy == Strategy::kPassQ) team.attending = share_tokens(communicator, tokens);
  attend({communicator, problem, grid, options, meeting, progress, result}, team, queries, tokens,
         kernels::head_groups(problem), problem.kv_heads, blocks,
         {result.out.data(), {queries.rows, problem.heads, problem.head_dim}},
         {result.lse.data(), {queries.rows, problem.heads}}, 0);
  meeting.meet("end of the rows");
  return result;
}

Result prefill(comm::Communicator& communicator, const AttentionProblem& problem, const partition::SequenceGrid& grid,
               const partition::Layout& layout, LayerShard& shard, const Options& options, ProgressSink& progress) {
  return Prefill(communicator, problem, grid, layout, shard, options, progress).run();
}

}  // namespace ringmark::runtime::dense
