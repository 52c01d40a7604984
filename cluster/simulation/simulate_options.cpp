#include "cluster/simulation/simulate_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options/options_description.hpp>
#include <cmath>
#include <sstream>
#include <string_view>

#include "cluster/options/layer_choices.h"
#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "cluster/options/size_text.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

namespace po = boost::program_options;

constexpr std::int64_t kMostTokens = std::int64_t{1} << 27;
constexpr std::int64_t kMostNodes = 4096;
constexpr std::int64_t kMostRanks = 16384;
constexpr std::size_t kMostPoints = 256;

constexpr std::string_view kHelpHead =
    R"(ringmark simulate: what a prefill would take on a cluster that is not there, one layer, by node count.

  ringmark simulate --tokens 1m,16m --nodes 1..128*2 --ranks-per-node 8 --profile h200 --topology infiniband
  ringmark simulate --tokens 64k --nodes 1,2,4 --profile machine.json --topology shared --rate-gbit 1

The runtime's own planners say what moves; SimGrid runs it on the topology; computing takes what the profile says.
Values come from flags, else from environment variables (--mode is RINGMARK_MODE), else from the --config file.
Exit codes: 0 done, 2 usage or bad input, 3 built without SimGrid.
)";

OptionGroup cluster_options() {
  OptionGroup group("Cluster");
  group.add("nodes", "LIST", "node counts, with ranges as 1..1024*2 (default: 1..16*2)")
      .add("ranks-per-node", "N", "GPUs of a node, a rank each (default: the profile's)")
      .add("profile", "NAME", "a shipped profile or a file of `ringmark calibrate` (default: h200)")
      .add("topology", "NAME",
           "between nodes: infiniband (a 400 Gb/s rail a rank), ethernet (100 Gb/s a node), profile (the link that it "
           "has), shared (nodes are namespaces that share the profile's cores) (default: profile)")
      .add("rails", "N", "network cards of a node (default: the topology's)")
      .add("rate-gbit", "X", "line rate of a rail instead of the topology's")
      .add("latency-us", "X", "latency of a rail instead of the topology's")
      .add("oversubscription", "X", "of the uplinks of leaf switches; 1: a full fat tree (default: 1)")
      .add("leaf-nodes", "N", "nodes of a leaf switch (default: 32)")
      .add("flows", "N", "flows above which those of a wave are joined (default: 20000)");
  return group;
}

OptionGroup layer_options() {
  OptionGroup group("Layer and study");
  group.add("tokens", "LIST", "tokens, each a series; weak: on the smallest node count (default: 1m)")
      .add("mode", "NAME", "strong or weak scaling (default: strong)")
      .add("arms", "LIST", "sparse, ring, all-gather (default: sparse)")
      .add("heads", "N", "query heads (default: 32)")
      .add("kv-heads", "N", "key/value heads, a divisor of heads (default: 8)")
      .add("head-dim", "N", "elements of a head (default: 128)")
      .add("dtype", "NAME", "bf16, fp16 or fp32 (default: bf16)")
      .add("chunk-size", "S", "tokens of a chunk (default: 64)")
      .add("window", "W", "tokens that are attended exactly (default: 512)")
      .add("topk", "K", "chunks a query chooses (default: 16)")
      .add("balance", "NAME", "contiguous, zigzag or rotate (default: zigzag)")
      .add("agreement", "X", "probability that a query chooses as the one before (default: the profile's)")
      .add("topics", "N", "directions to which queries turn; 0: always a fresh one (default: 8)")
      .add("seed", "N", "of the selection (default: 1)")
      .add("fetch", "NAME", "GPU: auto, blocks or stream (default: auto)")
      .add("fetch-mib", "MIB", "received blocks held at once (default: 64, GPU: a quarter of its memory)")
      .add("json", "FILE", "write all points as JSON (default: none)")
      .add("config", "FILE", "read options from lines of the form key = value, # begins a comment")
      .add_switch("help", "print this text");
  return group;
}

std::vector<std::int64_t> read_series(const OptionValues& values, const std::string& name, const std::string& usual,
                                      std::int64_t low, std::int64_t high) {
  const OptionValue* value = find_value(values, name);
  return value == nullptr ? parse_series(usual, name, low, high) : parse_series(value->text, value->origin, low, high);
}

AttentionProblem read_problem(const OptionValues& values) {
  AttentionProblem problem;
  problem.heads = 32;
  problem.kv_heads = 8;
  problem.head_dim = 128;
  problem.dtype = DType::kBfloat16;
  read_head_shape_into(values, problem);
  problem.chunk_size = read_count(values, "chunk-size", 1, kMaxChunkSize).value_or(64);
  problem.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
  problem.landmark_slots = true;  // as in a planted layer
  return problem;
}

std::vector<Arm> read_arms(const OptionValues& values) {
  const OptionValue* value = find_value(values, "arms");
  if (value == nullptr) return {Arm::kSparse};
  std::vector<Arm> arms;
  std::stringstream text(value->text);
  for (std::string name; std::getline(text, name, ',');) {
    const auto found = std::find_if(kArms.begin(), kArms.end(), [&](Arm arm) { return name_of(arm) == name; });
    if (found == kArms.end()) {
      fail_bad_input(fmt::format("{} = {}: {} is none of sparse, ring, all-gather", value->origin, value->text, name));
    }
    if (std::find(arms.begin(), arms.end(), *found) == arms.end()) arms.push_back(*found);
  }
  if (arms.empty()) fail_bad_input(fmt::format("{} is empty", value->origin));
  return arms;
}

constexpr std::array<std::string_view, 4> kTopologies = {"infiniband", "ethernet", "profile", "shared"};

void read_topology(const OptionValues& values, SimulateOptions& options) {
  const MachineProfile& profile = options.profile;
  Topology& topology = options.topology;
  const std::string name(read_choice<std::string_view>(values, "topology", kTopologies, [](auto text) {
                           return text;
                         }).value_or("profile"));
  const int usual_ranks = name == "shared" ? 1 : profile.ranks_per_node;
  topology.ranks_per_node = static_cast<int>(read_count(values, "ranks-per-node", 1, 1024).value_or(usual_ranks));
  topology.inside = profile.link(profile.inside());
  topology.rails = name == "profile" && profile.link(LinkClass::kFabric).node <= 0.0 ? topology.ranks_per_node : 1;
  topology.outside = profile.link(LinkClass::kFabric);
  for (const Fabric& fabric : kFabrics) {
    if (fabric.name != name) continue;
    topology.outside = link_of(fabric);
    topology.rails = fabric.rail_a_rank ? topology.ranks_per_node : 1;
  }
  topology.rails = static_cast<int>(read_count(values, "rails", 1, topology.ranks_per_node).value_or(topology.rails));
  if (const auto rate = read_positive(values, "rate-gbit", 1e6)) {
    LinkRate& link = topology.outside;
    const double line = *rate * 1e9 / 8;
    // What blocks reach of streams stays; a link that nobody has measured reaches its line rate.
    const double share = link.known() ? link.scattered / link.streamed : 1.0;
    link.streamed = line;
    link.scattered = line * share;
    link.source = fmt::format("asked for: {} Gbit/s", *rate);
  }
  if (const auto latency = read_real(values, "latency-us", 0.0, 1e6)) topology.outside.latency = *latency * 1e-6;
  topology.oversubscription = read_real(values, "oversubscription", 1.0, 1e3).value_or(1.0);
  topology.leaf_nodes = static_cast<int>(read_count(values, "leaf-nodes", 1, kMostNodes).value_or(topology.leaf_nodes));
  if (name == "shared") {
    if (profile.cores_per_node == 0) {
      fail_bad_input(fmt::format("topology = shared needs a profile of cores; {} has none", profile.name));
    }
    topology.shared_cores = profile.cores_per_node;
    topology.threads = profile.threads;
  }
  options.fabric =
      fmt::format("{}: {} rail{} a node, {:.4g} GB/s streamed, {:.4g} GB/s for blocks, {:g} us; {}", name,
                  topology.rails, topology.rails == 1 ? "" : "s", topology.outside.streamed / 1e9,
                  topology.outside.scattered / 1e9, topology.outside.latency * 1e6, topology.outside.source);
}

void check_links(const SimulateOptions& options) {
  const Topology& topology = options.topology;
  if (options.nodes.back() > 1 && !topology.outside.known()) {
    fail_bad_input(
        fmt::format("profile {} knows no link between nodes: give --topology or --rate-gbit", options.profile.name));
  }
  if (topology.ranks_per_node > 1 && !topology.inside.known()) {
    fail_bad_input(
        fmt::format("profile {} knows no link between ranks of a node: ranks-per-node = {} needs one; limit: 1",
                    options.profile.name, topology.ranks_per_node));
  }
  const std::int64_t ranks = std::int64_t{options.nodes.back()} * topology.ranks_per_node;
  if (ranks > kMostRanks) {
    fail_bad_input(fmt::format("nodes = {} of {} ranks are {} ranks; limit: {}", options.nodes.back(),
                               topology.ranks_per_node, ranks, kMostRanks));
  }
}

}  // namespace

std::vector<std::int64_t> parse_series(const std::string& text, const std::string& origin, std::int64_t low,
                                       std::int64_t high) {
  const auto refuse = [&](const std::string& part) {
    fail_bad_input(fmt::format("{} = {}: {} is no count in [{}, {}] and no range as {}..{}*2", origin, text,
                               part.empty() ? "an empty part" : part, low, high, low, high));
  };
  const auto count_of = [&](const std::string& part) {
    const auto count = parse_count(part);
    if (!count || *count < low || *count > high) refuse(part);
    return *count;
  };
  std::vector<std::int64_t> series;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t dots = part.find(".."), star = part.find('*');
    if (dots == std::string::npos) {
      series.push_back(count_of(part));
      continue;
    }
    const std::int64_t last = count_of(part.substr(dots + 2, star == std::string::npos ? star : star - dots - 2));
    const auto factor = star == std::string::npos ? std::optional<std::int64_t>(2) : parse_count(part.substr(star + 1));
    if (!factor || *factor < 2) refuse(part);
    for (std::int64_t count = count_of(part.substr(0, dots)); count <= last; count *= *factor) series.push_back(count);
  }
  if (series.empty() || text.back() == ',') refuse("");
  std::sort(series.begin(), series.end());
  series.erase(std::unique(series.begin(), series.end()), series.end());
  return series;
}

SimulateOptions parse_simulate_options(const std::vector<std::string>& arguments, const Environment& environment) {
  const OptionValues values = read_option_layers(simulate_descriptions(), arguments, environment);
  SimulateOptions options;
  const std::string profile = read_text(values, "profile");
  options.profile = find_profile(profile.empty() ? "h200" : profile);
  options.tokens = read_series(values, "tokens", "1m", 1, kMostTokens);
  for (const std::int64_t nodes : read_series(values, "nodes", "1..16*2", 1, kMostNodes)) {
    options.nodes.push_back(static_cast<int>(nodes));
  }
  read_topology(values, options);
  check_links(options);
  constexpr std::array kModes = {Scaling::kStrong, Scaling::kWeak};
  options.mode = read_choice<Scaling>(values, "mode", kModes, [](Scaling mode) {
                   return name_of(mode);
                 }).value_or(Scaling::kStrong);
  options.arms = read_arms(values);
  const std::size_t points = options.arms.size() * options.tokens.size() * options.nodes.size();
  if (points > kMostPoints) fail_bad_input(fmt::format("{} points are asked for; limit: {}", points, kMostPoints));
  LayerJob& job = options.job;
  job.problem = read_problem(values);
  job.policy.window = read_count(values, "window", 0, kMostTokens).value_or(512);
  job.policy.topk = read_count(values, "topk", 0, kMaxTopk).value_or(16);
  job.balance = read_balance(values).value_or(partition::Balance::kZigzag);
  job.turns.agreement = read_fraction(values, "agreement").value_or(options.profile.agreement);
  job.turns.topics = read_count(values, "topics", 0, 1 << 12).value_or(8);
  job.turns.seed = read_seed(values, "seed").value_or(1);
  job.fetch = read_fetch(values).value_or(runtime::Fetch::kAuto);
  // As the command prefill has them.
  const std::int64_t quarter = options.profile.memory_of_rank(options.topology.ranks_per_node) / 4;
  const bool on_gpu = options.profile.backend == "cuda";
  const auto mib = read_count(values, "fetch-mib", 1, std::int64_t{1} << 24);
  job.fetch_budget = mib ? *mib << 20 : on_gpu ? quarter : std::int64_t{64} << 20;
  job.table_budget = quarter;
  options.flow_limit = read_count(values, "flows", 0, std::int64_t{1} << 32).value_or(options.flow_limit);
  options.json = read_text(values, "json");
  job.problem.tokens = options.tokens.front();
  job.problem.validate();
  job.policy.validate(job.problem);
  return options;
}

po::options_description simulate_descriptions() {
  po::options_description all("", OptionGroup::kLineWidth, OptionGroup::kTextWidth);
  all.add(cluster_options().options()).add(layer_options().options());
  return all;
}

std::string simulate_help() {
  std::ostringstream text;
  text << kHelpHead << "\n" << simulate_descriptions();
  return text.str();
}

}  // namespace ringmark::cluster
