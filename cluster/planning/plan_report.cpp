#include "cluster/planning/plan_report.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cluster/options/size_text.h"

namespace ringmark::cluster {
namespace {

using Json = nlohmann::ordered_json;

std::string seconds_text(double seconds) {
  if (seconds >= 10.0) return fmt::format("{:.1f} s", seconds);
  if (seconds >= 0.1) return fmt::format("{:.3f} s", seconds);
  return seconds >= 1e-4 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.1f} us", seconds * 1e6);
}

std::string bytes_text(double bytes) { return cluster::bytes_text(std::llround(bytes)); }

std::string link_text(const LinkBytes& bytes) {
  if (bytes.total() <= 0) return "nothing";
  if (bytes.outside <= 0) return fmt::format("{} of this host", bytes_text(bytes.inside));
  if (bytes.inside <= 0) return fmt::format("{} of other hosts", bytes_text(bytes.outside));
  return fmt::format("{} of this host, {} of other hosts", bytes_text(bytes.inside), bytes_text(bytes.outside));
}

using Stage = std::pair<const char*, double RankSeconds::*>;
constexpr std::array kStages = {Stage{"store", &RankSeconds::store},   Stage{"landmarks", &RankSeconds::landmarks},
                                Stage{"window", &RankSeconds::window}, Stage{"pack", &RankSeconds::pack},
                                Stage{"score", &RankSeconds::score},   Stage{"plan", &RankSeconds::plan},
                                Stage{"attend", &RankSeconds::attend}, Stage{"rest", &RankSeconds::rest}};

using Wire = std::pair<const char*, Transfer RankPlan::*>;
constexpr std::array kWires = {Wire{"window blocks", &RankPlan::window}, Wire{"merge", &RankPlan::merge},
                               Wire{"chosen blocks", &RankPlan::chosen}};

double ring_bytes(const PlanOptions& options) {
  const AttentionProblem& p = options.request.problem;
  return 2.0 * static_cast<double>(p.tokens * p.kv_heads * p.head_dim * size_of(p.dtype)) *
         (options.request.ranks() - 1);
}

class Table {
 public:
  void row(std::string_view name, const std::string& value) { text_ += fmt::format("{:<18}{}\n", name, value); }
  void line(const std::string& text) { text_ += text + "\n"; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void add_layer(Table& table, const PlanOptions& options, const LayerPlan& plan) {
  const PlanRequest& request = options.request;
  const AttentionProblem& p = request.problem;
  table.row("layer", fmt::format("{} tokens, {} query heads, {} kv, d {}, {}", p.tokens, p.heads, p.kv_heads,
                                 p.head_dim, name_of(p.dtype)));
  table.row("policy", fmt::format("{}: chunk {}{}, window {}, top {}, sinks {}", options.policy_name, p.chunk_size,
                                  p.landmark_slots ? " with landmark slot" : "", request.policy.window,
                                  request.policy.topk, request.policy.sinks));
  table.row("ranks", fmt::format("{} node{} x {}, {} ({:.2f} max/mean)", request.nodes, request.nodes == 1 ? "" : "s",
                                 request.ranks_per_node, name_of(request.balance), plan.balance_max_over_mean));
  table.row("profile", fmt::format("{}: {}", request.profile.name, request.profile.measured));
  for (const LinkClass which : {request.profile.inside(), LinkClass::kFabric}) {
    const LinkRate& link = request.profile.link(which);
    const bool used = which == LinkClass::kFabric ? request.nodes > 1 : request.ranks_per_node > 1;
    if (used) table.row(fmt::format("link {}", name_of(which)), link.source);
  }
  const double slowdown = request.profile.slowdown(request.ranks_per_node);
  if (slowdown > 1.0) {
    table.row("note", fmt::format("{} ranks share {} cores: all computing takes {:.2f} times longer",
                                  request.ranks_per_node, request.profile.cores_per_node, slowdown));
  }
}

void add_choices(Table& table, const PlanOptions& options, const LayerPlan& plan) {
  const PlanRequest& request = options.request;
  if (request.policy.selects()) {
    table.row("merge",
              fmt::format("{}: {} ({} of landmarks, {} of queries and lists to the busiest rank)", name_of(plan.merge),
                          plan.merge_why, cluster::bytes_text(plan.merge_cost.landmark_bytes),
                          cluster::bytes_text(plan.merge_cost.score_bytes)));
    table.row("fetch", plan.fetch.why);
    table.row("union ratio", fmt::format("{:.2f} at 32 queries (agreement {:.3g}, {}, {} needles)",
                                         expected_union_ratio(request.model, 32), request.model.agreement,
                                         request.model.topics > 0 ? fmt::format("{} topics", request.model.topics)
                                                                  : std::string("fresh directions"),
                                         request.model.needles));
  }
}

void add_rank(Table& table, const PlanOptions& options, const LayerPlan& plan) {
  const RankPlan& rank = plan.slowest_rank();
  table.line("");
  table.line(fmt::format("rank {}, the slowest{}: {} rows, {} chunks", rank.rank.value(),
                         plan.all_examined ? "" : " of those that were looked at", rank.shard.rows, rank.shard.chunks));
  const double all = std::max(rank.seconds(), 1e-12);
  for (const auto& [name, seconds] : kStages) {
    if (rank.compute.*seconds > 0) {
      table.line(fmt::format("  {:<16}{:>12}{:>7.1f}%", name, seconds_text(rank.compute.*seconds),
                             100.0 * (rank.compute.*seconds) / all));
    }
  }
  for (const auto& [name, wire] : kWires) {
    const Transfer& of = rank.*wire;
    if (of.bytes.total() <= 0) continue;
    table.line(fmt::format("  {:<16}{:>12}{:>7.1f}%   {}; {} in all, {} hidden", name, seconds_text(of.exposed),
                           100.0 * of.exposed / all, link_text(of.bytes), seconds_text(of.seconds),
                           seconds_text(std::max(0.0, of.seconds - of.exposed))));
  }
  table.line(fmt::format("  {:<16}{:>12}", "total", seconds_text(rank.seconds())));
  table.line("");
  table.row("bound by", plan.bound_by);
  table.row("efficiency", fmt::format("{:.1f}% of {} times one rank, which would take {}", 100.0 * plan.efficiency,
                                      options.request.ranks(), seconds_text(plan.one_rank_seconds)));
  double fetched = 0;
  for (const RankPlan& of : plan.examined) fetched += of.window.bytes.total() + of.chosen.bytes.total();
  if (plan.all_examined && options.request.ranks() > 1) {
    table.row("bytes fetched", fmt::format("{} of a ring's {} ({:.1f}%)", bytes_text(fetched),
                                           bytes_text(ring_bytes(options)), 100.0 * fetched / ring_bytes(options)));
  }
  for (const runtime::dense::Cost& cost : plan.dense) {
    table.row(fmt::format("dense {}", name_of(cost.strategy)),
              fmt::format("{}, {} received by a rank: {:.1f} times as long", seconds_text(cost.seconds()),
                          cluster::bytes_text(cost.bytes), cost.seconds() / all));
  }
}

Json transfer_json(const Transfer& transfer) {
  return {{"bytes_inside", std::llround(transfer.bytes.inside)},
          {"bytes_outside", std::llround(transfer.bytes.outside)},
          {"seconds", transfer.seconds},
          {"seconds_exposed", transfer.exposed}};
}

Json rank_json(const RankPlan& rank) {
  Json json = {{"rank", rank.rank.value()}, {"rows", rank.shard.rows}, {"chunks", rank.shard.chunks}};
  for (const auto& [name, seconds] : kStages) json["seconds"][name] = rank.compute.*seconds;
  json["seconds"]["exposed"] = rank.exposed();
  json["seconds"]["total"] = rank.seconds();
  json["window_blocks"] = transfer_json(rank.window);
  json["merge"] = transfer_json(rank.merge);
  json["chosen_blocks"] = transfer_json(rank.chosen);
  return json;
}

Json layer_json(const PlanOptions& options) {
  const PlanRequest& request = options.request;
  const AttentionProblem& p = request.problem;
  return {{"tokens", p.tokens},
          {"heads", p.heads},
          {"kv_heads", p.kv_heads},
          {"head_dim", p.head_dim},
          {"dtype", name_of(p.dtype)},
          {"chunk_size", p.chunk_size},
          {"landmark_slots", p.landmark_slots},
          {"policy", options.policy_name},
          {"window", request.policy.window},
          {"topk", request.policy.topk},
          {"sinks", request.policy.sinks},
          {"agreement", request.model.agreement},
          {"topics", request.model.topics},
          {"needles", request.model.needles}};
}

}  // namespace

std::string plan_table(const PlanOptions& options, const LayerPlan& plan) {
  Table table;
  add_layer(table, options, plan);
  add_choices(table, options, plan);
  table.line("");
  table.line(fmt::format("memory of rank {}, the largest{}", plan.memory_rank.value(),
                         plan.memory_of == "GPU"                     ? ", on its GPU"
                         : options.request.profile.backend == "cuda" ? ", by the host's plan: this build has no CUDA"
                                                                     : ""));
  std::string text = table.take() + runtime::describe(plan.memory, options.request.memory_limit);
  add_rank(table, options, plan);
  return text + table.take();
}

std::string plan_json(const PlanOptions& options, const LayerPlan& plan) {
  const PlanRequest& request = options.request;
  Json json = {{"ringmark", RINGMARK_VERSION}, {"plan", 1}, {"layer", layer_json(options)}};
  json["ranks"] = request.ranks();
  json["nodes"] = request.nodes;
  json["ranks_per_node"] = request.ranks_per_node;
  json["profile"] = request.profile.name;
  json["profile_measured"] = request.profile.measured;
  json["balance"] = name_of(request.balance);
  json["balance_max_over_mean"] = plan.balance_max_over_mean;
  json["memory"] = {{"rank", plan.memory_rank.value()}, {"of", plan.memory_of}};
  for (const runtime::MemoryItem& item : plan.memory.items) json["memory"]["items"][item.name] = item.bytes;
  json["memory"]["total"] = plan.memory.total();
  json["memory"]["limit"] = request.memory_limit;
  json["memory"]["fits"] = plan.fits(request.memory_limit);
  json["merge"] = name_of(plan.merge);
  json["merge_reason"] = plan.merge_why;
  json["fetch"] = name_of(plan.fetch.fetch);
  json["fetch_reason"] = plan.fetch.why;
  json["seconds"] = plan.slowest_rank().seconds();
  json["one_rank_seconds"] = plan.one_rank_seconds;
  json["efficiency"] = plan.efficiency;
  json["bound_by"] = plan.bound_by;
  json["bytes_ring"] = std::llround(ring_bytes(options));
  json["all_ranks_examined"] = plan.all_examined;
  for (const RankPlan& rank : plan.examined) json["examined"].push_back(rank_json(rank));
  for (const runtime::dense::Cost& cost : plan.dense) {
    json["dense"][std::string(name_of(cost.strategy))] = {{"seconds", cost.seconds()}, {"bytes_a_rank", cost.bytes}};
  }
  return json.dump(2) + "\n";
}

}  // namespace ringmark::cluster
