#include "cluster/simulation/simulate_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cluster/options/size_text.h"

namespace ringmark::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kBar = 0.9;

// What loses time under the name of a stage, in words.
std::string_view cause(Stage stage) {
  switch (stage) {
    case Stage::kGather: return "waiting for landmark records";
    case Stage::kPack: return "landmark records that every rank makes ready";
    case Stage::kPlan: return "planning on the host";
    case Stage::kFetch: return "waiting for blocks";
    case Stage::kMeet: return "waiting for slower ranks, and meetings";
    case Stage::kRest: return "fixed costs of a layer";
    case Stage::kScore: return "scores";
    default: return name_of(stage);
  }
}

double lost_share(const Point& point) {
  double sum = 0;
  for (const double lost : point.lost) sum += std::max(0.0, lost);
  return point.held_by && sum > 0 ? point.lost[static_cast<std::size_t>(*point.held_by)] / sum : 0.0;
}

std::string held_by(const Point& point) {
  if (!point.held_by) return "-";
  return fmt::format("{} {:.0f}%", name_of(*point.held_by), 100 * lost_share(point));
}

void print_verdict(const SimulateOptions& options, const std::vector<Point>& points) {
  const Point* below = first_below(points, kBar);
  if (below == nullptr) {
    fmt::print("efficiency stays at {:.0f}% or above\n", 100 * kBar);
    return;
  }
  fmt::print("efficiency falls below {:.0f}% at {} node{} ({} ranks): {:.1f}%", 100 * kBar, below->nodes,
             below->nodes == 1 ? "" : "s", below->ranks, 100 * below->efficiency);
  if (below->held_by) {
    fmt::print(", held there by {} ({:.0f}% of the lost time)", cause(*below->held_by), 100 * lost_share(*below));
  }
  fmt::print("\n");
  if (options.mode == Scaling::kWeak) {
    fmt::print("  work a rank grows with the tokens: by work its efficiency is {:.1f}%\n",
               100 * below->work_efficiency);
  }
}

Json point_json(const Point& point) {
  Json json = {{"arm", name_of(point.arm)}, {"nodes", point.nodes}, {"ranks", point.ranks},
               {"tokens", point.tokens},    {"fits", point.fits},   {"memory_bytes", point.memory_bytes}};
  if (!point.fits) return json;
  json["seconds"] = {{"total", point.seconds}, {"exposed", point.exposed()}};
  json["lost_seconds"] = Json::object();
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    json["seconds"][std::string(kStageNames[stage])] = point.mean[stage];
    json["lost_seconds"][std::string(kStageNames[stage])] = point.lost[stage];
  }
  json["efficiency"] = point.efficiency;
  json["work_efficiency"] = point.work_efficiency;
  json["held_by"] = point.held_by ? Json(name_of(*point.held_by)) : Json();
  json["bytes_fetched"] = point.bytes_fetched;
  json["bytes_merged"] = point.bytes_merged;
  json["bytes_inside"] = point.bytes_inside;
  json["bytes_between_nodes"] = point.bytes_outside;
  json["flows"] = point.flows;
  json["flows_joined"] = point.aggregated;
  return json;
}

}  // namespace

void print_setting(const SimulateOptions& options) {
  const MachineProfile& profile = options.profile;
  const AttentionProblem& p = options.job.problem;
  const Topology& topology = options.topology;
  fmt::print("profile        {} ({}); {}\n", profile.name, profile.backend, profile.measured);
  if (topology.shared_cores > 0)
    fmt::print("nodes          hosts of one machine that share its {} cores\n", topology.shared_cores);
  fmt::print("inside a node  {} ranks, {:.4g} GB/s a rank; {}\n", topology.ranks_per_node,
             topology.inside.streamed / 1e9, topology.inside.source.empty() ? "unknown" : topology.inside.source);
  fmt::print("between nodes  {}\n", options.fabric);
  if (topology.oversubscription > 1.0) {
    fmt::print("leaf switches  of {} nodes, uplinks oversubscribed {:g}:1\n", topology.leaf_nodes,
               topology.oversubscription);
  }
  fmt::print("layer          H={} Hkv={} d={} S={} W={} K={} {}, {}; agreement {:g}, {} directions\n", p.heads,
             p.kv_heads, p.head_dim, p.chunk_size, options.job.policy.window, options.job.policy.topk, name_of(p.dtype),
             partition::name_of(options.job.balance), options.job.turns.agreement, options.job.turns.topics);
}

void print_series(const SimulateOptions& options, const std::vector<Point>& points) {
  const auto base = std::find_if(points.begin(), points.end(), [](const Point& point) { return point.fits; });
  fmt::print("\n{}, {} scaling, {} tokens{}", name_of(points.front().arm), name_of(options.mode), points.front().tokens,
             options.mode == Scaling::kWeak ? " on the smallest count and as many more as nodes" : "");
  if (base == points.end()) {
    fmt::print("\n  fits nowhere: {} a rank on {} ranks\n", bytes_text(points.back().memory_bytes),
               points.back().ranks);
    return;
  }
  fmt::print("; efficiency = {} against {} rank{}, the smallest count here that fits memory\n",
             options.mode == Scaling::kStrong ? "t0 R0 / (t R)" : "t0 / t", base->ranks, base->ranks == 1 ? "" : "s");
  fmt::print("{:>6} {:>6} {:>10} {:>10} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10}  {}\n", "nodes", "ranks",
             "tokens", "ms", "eff %", "compute", "gather", "fetch", "plan", "meet", "in node GB", "between GB",
             "held by");
  for (const Point& p : points) {
    if (!p.fits) {
      fmt::print("{:>6} {:>6} {:>10}  does not fit: {} a rank\n", p.nodes, p.ranks, p.tokens,
                 bytes_text(p.memory_bytes));
      continue;
    }
    double all = 0;
    for (const double seconds : p.mean) all += seconds;
    const double plan = p.at(Stage::kPlan), meet = p.at(Stage::kMeet);
    const double compute = all - p.exposed() - plan - meet;
    fmt::print(
        "{:>6} {:>6} {:>10} {:>10.3f} {:>7.1f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>10.3f} {:>10.3f}  "
        "{}{}\n",
        p.nodes, p.ranks, p.tokens, p.seconds * 1e3, 100 * p.efficiency, compute * 1e3, p.at(Stage::kGather) * 1e3,
        p.at(Stage::kFetch) * 1e3, plan * 1e3, meet * 1e3, static_cast<double>(p.bytes_inside) / 1e9,
        static_cast<double>(p.bytes_outside) / 1e9, held_by(p), p.aggregated ? " *" : "");
  }
  if (std::any_of(points.begin(), points.end(), [](const Point& point) { return point.aggregated; })) {
    fmt::print("* flows of a wave are joined (--flows)\n");
  }
  print_verdict(options, points);
}

std::string simulation_json(const SimulateOptions& options, const std::vector<Point>& points) {
  const AttentionProblem& p = options.job.problem;
  Json json = {{"ringmark", RINGMARK_VERSION},
               {"mode", name_of(options.mode)},
               {"profile", options.profile.name},
               {"fabric", options.fabric},
               {"ranks_per_node", options.topology.ranks_per_node},
               {"oversubscription", options.topology.oversubscription},
               {"heads", p.heads},
               {"kv_heads", p.kv_heads},
               {"head_dim", p.head_dim},
               {"chunk_size", p.chunk_size},
               {"window", options.job.policy.window},
               {"topk", options.job.policy.topk},
               {"agreement", options.job.turns.agreement},
               {"topics", options.job.turns.topics},
               {"points", Json::array()}};
  for (const Point& point : points) json["points"].push_back(point_json(point));
  return json.dump(2) + "\n";
}

}  // namespace ringmark::cluster
