#include "cluster/planning/layer_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "kernels/block_table.h"
#include "kernels/landmarks.h"
#include "kvstore/block_store.h"
#include "kvstore/landmark_table.h"
#include "runtime/fetch_plan.h"

namespace ringmark::cluster {
namespace {

using partition::Layout;
using partition::SequenceGrid;

// (rank, chunk) pairs that are looked at one by one.
constexpr std::int64_t kMostPairs = std::int64_t{1} << 26;

class Planner {
 public:
  explicit Planner(const PlanRequest& request)
      : request_(request),
        grid_(request.problem, request.policy),
        layout_(partition::make_layout(grid_, request.ranks(), request.balance)),
        inside_(request.profile.link(request.profile.inside())),
        fabric_(request.profile.link(LinkClass::kFabric)),
        slowdown_(request.profile.slowdown(request.ranks_per_node)) {
    if (request.ranks_per_node > 1) expect_link(inside_, request.profile.inside());
    if (request.nodes > 1) expect_link(fabric_, LinkClass::kFabric);
  }

  LayerPlan plan() {
    LayerPlan plan;
    const partition::WorkBalance balance = partition::measure_balance(grid_, layout_);
    plan.balance_max_over_mean = balance.max_over_mean;
    choose_merge(plan);
    plan_memory(plan);
    for (const RankId rank : ranks_to_examine(balance, plan.all_examined)) {
      plan.examined.push_back(plan_rank(rank, plan.merge));
    }
    const auto slowest =
        std::max_element(plan.examined.begin(), plan.examined.end(),
                         [](const RankPlan& a, const RankPlan& b) { return a.seconds() < b.seconds(); });
    plan.slowest = static_cast<std::size_t>(slowest - plan.examined.begin());
    plan.fetch = decide_fetch(*slowest);
    const Layout one = partition::make_layout(grid_, 1, request_.balance);
    const RankWork whole = count_work(request_.problem, request_.policy, grid_, one, RankId(0), request_.model);
    plan.one_rank_seconds = predict(whole, request_.profile.compute, request_.profile.slowdown(1)).total();
    plan.efficiency = plan.one_rank_seconds / (request_.ranks() * std::max(slowest->seconds(), 1e-12));
    plan.bound_by = bound_of(*slowest);
    plan_dense(plan);
    return plan;
  }

 private:
  void expect_link(const LinkRate& link, LinkClass which) const {
    if (link.known()) return;
    fail_bad_input(
        fmt::format("profile {} has no link {}, which {} nodes of {} rank{} need: calibrate on such ranks, or write "
                    "one into the file",
                    request_.profile.name, name_of(which), request_.nodes, request_.ranks_per_node,
                    request_.ranks_per_node == 1 ? "" : "s"));
  }

  bool same_node(int a, int b) const { return a / request_.ranks_per_node == b / request_.ranks_per_node; }

  LinkBytes split(const std::vector<double>& by_owner, RankId rank, double bytes_each) const {
    LinkBytes bytes;
    for (int owner = 0; owner < layout_.ranks(); ++owner) {
      const double of = by_owner[static_cast<std::size_t>(owner)] * bytes_each;
      (same_node(owner, static_cast<int>(rank.value())) ? bytes.inside : bytes.outside) += of;
    }
    return bytes;
  }

  // One after the other: a rank receives what comes over memory and over the fabric by the same hands.
  double seconds_of(const LinkBytes& bytes, double LinkRate::*rate, double messages) const {
    double seconds = 0;
    if (bytes.inside > 0) {
      seconds += inside_.latency + bytes.inside / inside_.shared(inside_.*rate, request_.ranks_per_node);
    }
    if (bytes.outside > 0) {
      seconds += fabric_.latency + bytes.outside / fabric_.shared(fabric_.*rate, request_.ranks_per_node);
    }
    const double share = bytes.total() > 0 ? bytes.outside / bytes.total() : 0.0;
    return seconds + messages * ((1.0 - share) * inside_.request + share * fabric_.request);
  }

  void choose_merge(LayerPlan& plan) const {
    plan.merge_cost = runtime::merge_cost(request_.problem, request_.policy, layout_);
    const std::int64_t table_budget = request_.memory_limit / 4;
    plan.merge = runtime::choose_merge(request_.merge, plan.merge_cost, table_budget);
    const bool fits = plan.merge_cost.table_bytes <= table_budget;
    plan.merge_why = !request_.policy.selects()                ? "nothing is chosen"
                     : request_.merge != runtime::Merge::kAuto ? "asked for"
                     : !fits                                   ? "the table takes more than a quarter of the memory"
                                                               : "it moves fewer bytes";
  }

  runtime::MemoryPlan memory_of(const runtime::ShardSize& shard, runtime::Merge merge, std::string& whose) const {
    if (request_.profile.backend == "cuda") {
      if (auto plan = plan_gpu_memory(request_, shard, merge)) {
        whose = "GPU";
        return std::move(*plan);
      }
    }
    whose = "host";
    runtime::PrefillOptions options;
    options.fetch_budget = request_.fetch_budget;
    options.threads = request_.threads;
    return runtime::plan_memory(request_.problem, request_.policy, shard, false, merge, options);
  }

  // Items grow with rows and chunks, so the largest shards have the most.
  void plan_memory(LayerPlan& plan) const {
    const auto size = [&](int rank) { return runtime::shard_size(layout_, RankId(rank)); };
    int most = 0;
    for (int rank = 1; rank < layout_.ranks(); ++rank) {
      if (std::pair(size(rank).chunks, size(rank).rows) > std::pair(size(most).chunks, size(most).rows)) most = rank;
    }
    plan.memory_rank = RankId(most);
    plan.memory = memory_of(size(most), plan.merge, plan.memory_of);
  }

  std::vector<RankId> ranks_to_examine(const partition::WorkBalance& balance, bool& all) const {
    std::vector<RankId> ranks;
    all = layout_.ranks() * grid_.chunk_count() <= kMostPairs;
    if (all) {
      for (int rank = 0; rank < layout_.ranks(); ++rank) ranks.emplace_back(rank);
      return ranks;
    }
    const auto busiest = std::max_element(balance.pairs.begin(), balance.pairs.end()) - balance.pairs.begin();
    std::vector<std::int64_t> chosen = {0, layout_.ranks() / 2, layout_.ranks() - 1, busiest};
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    for (const std::int64_t rank : chosen) ranks.emplace_back(rank);
    return ranks;
  }

  RankPlan plan_rank(RankId rank, runtime::Merge merge) const {
    RankPlan plan;
    plan.rank = rank;
    plan.shard = runtime::shard_size(layout_, rank);
    plan.work = count_work(request_.problem, request_.policy, grid_, layout_, rank, request_.model, merge);
    plan.compute = predict(plan.work, request_.profile.compute, slowdown_);
    const ExpectedFetch fetch = expected_fetch(request_.problem, request_.policy, grid_, layout_, rank, request_.model);
    const auto block = static_cast<double>(kernels::BlockShape::of(request_.problem).bytes());
    plan.window.bytes = split(fetch.window_blocks, rank, block);
    plan.window.seconds = plan.window.exposed = seconds_of(plan.window.bytes, &LinkRate::scattered, fetch.window());
    if (!request_.policy.selects()) return plan;
    plan_merge(plan, merge);
    plan.chosen.bytes = split(fetch.chosen_blocks, rank, block);
    double reads = fetch.chosen();
    if (merge == runtime::Merge::kScores) {
      const LinkBytes records = split(fetch.chosen_records, rank, record_bytes());
      plan.chosen.bytes.inside += records.inside;
      plan.chosen.bytes.outside += records.outside;
      reads += fetch.records();
    }
    plan.chosen.seconds = seconds_of(plan.chosen.bytes, &LinkRate::scattered, reads);
    hide_behind_attention(plan);
    return plan;
  }

  double record_bytes() const {
    const auto shape = kernels::LandmarkShape::of(request_.problem, request_.policy.scorer);
    return static_cast<double>(kvstore::LandmarkTable::bytes_of(shape, 1));
  }

  // Exact: what the report calls bytes merged, but for the records of chosen chunks.
  void plan_merge(RankPlan& plan, runtime::Merge merge) const {
    const std::vector<TokenId> no_tokens;
    const runtime::SelectorInput input{request_.problem, request_.policy, grid_, layout_, no_tokens, {}, {}};
    const auto bytes = static_cast<double>(runtime::received_bytes(input, plan.rank, merge));
    std::vector<double> share(static_cast<std::size_t>(layout_.ranks()));
    for (int other = 0; other < layout_.ranks(); ++other) {
      if (RankId(other) == plan.rank) continue;
      const RankId of(other);
      // Tables by chunks; visiting queries by rows, and their lists come back alike from all.
      share[static_cast<std::size_t>(other)] = merge == runtime::Merge::kLandmarks
                                                   ? static_cast<double>(layout_.chunks_of(of).size())
                                                   : static_cast<double>(layout_.token_count(of));
    }
    const LinkBytes parts = split(share, plan.rank, 1.0);
    if (parts.total() > 0) {
      plan.merge.bytes = {bytes * parts.inside / parts.total(), bytes * parts.outside / parts.total()};
    }
    plan.merge.seconds = plan.merge.exposed = seconds_of(plan.merge.bytes, &LinkRate::streamed, layout_.ranks() - 1.0);
  }

  // While a wave is attended the next one comes.
  void hide_behind_attention(RankPlan& plan) const {
    const std::int64_t rows = plan.shard.rows, of_wave = runtime::rows_of_wave(rows);
    const auto waves = static_cast<double>(std::max<std::int64_t>(1, (rows + of_wave - 1) / of_wave));
    const double later = (waves - 1.0) / waves;
    plan.chosen.exposed =
        plan.chosen.seconds / waves + later * std::max(0.0, plan.chosen.seconds - plan.compute.attend);
  }

  // By the slowest link that blocks come over.
  runtime::FetchDecision decide_fetch(const RankPlan& rank) const {
    const std::int64_t others = grid_.chunk_count() - rank.shard.chunks;
    const auto remote = request_.policy.selects() ? kvstore::BlockStore::bytes_of(request_.problem, others) : 0;
    const LinkRate& link = request_.nodes > 1 ? fabric_ : inside_;
    runtime::LinkRates rates;
    if (link.known()) {
      rates = {link.shared(link.scattered, request_.ranks_per_node),
               link.shared(link.streamed, request_.ranks_per_node)};
    }
    const auto chosen = static_cast<std::int64_t>(rank.chosen.bytes.total());
    const bool streams = request_.profile.backend == "cuda";
    return runtime::choose_fetch(streams ? request_.fetch : runtime::Fetch::kBlocks, chosen, remote,
                                 request_.fetch_budget, rates);
  }

  std::string bound_of(const RankPlan& rank) const {
    const RankSeconds& s = rank.compute;
    const std::array<std::pair<const char*, double>, 11> parts = {
        {{"scoring", s.score},
         {"attention to chosen chunks", s.attend},
         {"attention to the window", s.window},
         {"packing of landmarks", s.pack},
         {"building of landmarks", s.landmarks},
         {"storing of blocks", s.store},
         {"planning of fetches", s.plan},
         {"what no stage has (rest)", s.rest},
         {"the merge, on the links", rank.merge.exposed},
         {"window blocks, on the links", rank.window.exposed},
         {"chosen blocks, on the links", rank.chosen.exposed}}};
    const auto most =
        std::max_element(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    return fmt::format("{}, {:.0f}% of the time", most->first, 100.0 * most->second / std::max(rank.seconds(), 1e-12));
  }

  // Exact attention to everything by the strategies of `prefill --policy dense`.
  void plan_dense(LayerPlan& plan) const {
    namespace dense = runtime::dense;
    const AttentionProblem& p = request_.problem;
    const dense::Work work{layout_.ranks(), p.tokens, 0, p.heads, p.kv_heads, p.head_dim, size_of(p.dtype)};
    dense::Rates rates;
    const LinkRate& link = request_.nodes > 1 ? fabric_ : inside_;
    if (link.known()) {
      rates.bandwidth = link.shared(link.streamed, request_.ranks_per_node);
      rates.latency = link.latency;
    }
    rates.flops = 1.0 / std::max(request_.profile.compute.dense.unit * slowdown_, 1e-18);
    rates.fetch_budget = request_.fetch_budget;
    for (const dense::Strategy strategy :
         {dense::Strategy::kRing, dense::Strategy::kAllGather, dense::Strategy::kUlysses}) {
      plan.dense.push_back(
          dense::cost_of(strategy, strategy == dense::Strategy::kUlysses ? layout_.ranks() : 1, work, rates));
    }
  }

  const PlanRequest& request_;
  SequenceGrid grid_;
  Layout layout_;
  const LinkRate& inside_;
  const LinkRate& fabric_;
  double slowdown_;
};

}  // namespace

LayerPlan plan_layer(const PlanRequest& request) { return Planner(request).plan(); }

}  // namespace ringmark::cluster
