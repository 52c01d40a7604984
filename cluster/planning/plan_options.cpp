#include "cluster/planning/plan_options.h"

#include <fmt/format.h>

#include <array>
#include <sstream>
#include <string_view>

#include "cluster/options/layer_choices.h"
#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "cluster/prefill/policy_options.h"
#include "cluster/prefill/prefill_options.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

namespace po = boost::program_options;

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMaxRanks = std::int64_t{1} << 16;
constexpr std::int64_t kMaxFetchMib = std::int64_t{1} << 20;
constexpr double kMaxMemoryGib = 1 << 20;
constexpr double kMaxUnionRatio = 32;
constexpr std::int64_t kHostFetchBytes = std::int64_t{64} << 20;

constexpr std::string_view kHelpHead =
    R"(ringmark plan: what a prefill will take, before anything runs: memory, bytes and seconds of each rank, which
strategies and why, and exact attention beside it. Needs no MPI, no GPU and no input.

  ringmark plan --tokens 1m --nodes 16 --heads 32 --kv-heads 8 --head-dim 128 --window 512
  ringmark plan --tokens 128k --nodes 1 --ranks-per-node 4 --profile machine.json

Which chunks queries choose depends on the data: the queries of prefill --planted are the model, with its defaults.
Token counts take the suffixes k (1024), m and g. Values come from flags, else from environment variables
(--head-dim is RINGMARK_HEAD_DIM), else from the --config file, else from the defaults below.
Exit codes: 0 it fits, 2 usage or bad input, 3 it does not fit: the line says what is needed.
)";

OptionGroup layer_options() {
  const PlantedOptions defaults;
  OptionGroup group("Layer");
  group.add("tokens", "N", "tokens of the sequence, over all packed documents")
      .add("cu-seqlens", "LIST", "packed documents: their first tokens, then the number of tokens, separated by commas")
      .add("heads", "N", fmt::format("query heads (default: {})", defaults.heads))
      .add("kv-heads", "N", fmt::format("key/value heads, a divisor of heads (default: {})", defaults.kv_heads))
      .add("head-dim", "N", fmt::format("elements of a head (default: {})", defaults.head_dim))
      .add("dtype", "NAME", fmt::format("bf16, fp16 or fp32 (default: {})", name_of(defaults.dtype)))
      .add_switch("no-landmark-slots", "chunks have no slot of their own for a landmark");
  return group;
}

OptionGroup machine_options() {
  OptionGroup group("Machine");
  group
      .add("profile", "NAME|FILE",
           "what ringmark calibrate has measured, or a profile that comes with it (default: h200)")
      .add("nodes", "N", "hosts (default: 1)")
      .add("ranks-per-node", "N", "ranks, or GPUs, of a host (default: as the profile says)")
      .add("threads", "N", "threads a rank, for its memory (default: as the profile says)")
      .add("memory-gib", "GIB", "memory limit, GiB a rank (default: as the profile says)")
      .add("merge", "NAME", "how ranks find the global choice: auto, scores or landmarks (default: auto, the cheaper)")
      .add("balance", "NAME", "how chunks are dealt to ranks: contiguous, zigzag or rotate (default: zigzag)")
      .add("fetch", "NAME", "on GPUs: blocks, stream or auto (default: auto, the cheaper)")
      .add("fetch-mib", "MIB",
           "received blocks held at once, MiB a rank (default: 64; on a GPU a quarter of the memory limit)");
  return group;
}

OptionGroup data_options() {
  const QueryModel defaults;
  OptionGroup group("Data");
  group
      .add("agreement", "X",
           fmt::format("share of queries that equal the one before, 0 to 1 (default: {})", defaults.agreement))
      .add("topics", "N",
           fmt::format("directions that queries return to; 0: always a fresh one (default: {})", defaults.topics))
      .add("needles", "N", fmt::format("queries that ask alone (default: {})", defaults.needles))
      .add("union-ratio", "X",
           "instead of the three: union ratio at 32 queries, as the report of a run says; directions are then fresh");
  return group;
}

OptionGroup output_options() {
  OptionGroup group("Output");
  group.add("json", "FILE", "write the plan as JSON (default: none)")
      .add("config", "FILE", "read options from lines of the form key = value, # begins a comment")
      .add_switch("help", "print this text");
  return group;
}

AttentionProblem read_problem(const OptionValues& values) {
  const PlantedOptions defaults;
  AttentionProblem problem;
  const auto tokens = read_count(values, "tokens", 1, kMaxTokens);
  if (!tokens) fail_bad_input("no --tokens N given; see ringmark plan --help");
  problem.tokens = *tokens;
  problem.heads = defaults.heads;
  problem.kv_heads = defaults.kv_heads;
  problem.head_dim = defaults.head_dim;
  problem.dtype = defaults.dtype;
  read_head_shape_into(values, problem);
  problem.chunk_size = read_count(values, "chunk", 1, kMaxChunkSize).value_or(problem.chunk_size);
  problem.landmark_slots = !read_switch(values, "no-landmark-slots");
  problem.cu_seqlens = read_counts(values, "cu-seqlens").value_or(problem.cu_seqlens);
  problem.validate();
  return problem;
}

QueryModel read_model(const OptionValues& values) {
  QueryModel model;
  if (const auto ratio = read_real(values, "union-ratio", 1.0, kMaxUnionRatio)) {
    for (const char* name : {"agreement", "topics", "needles"}) {
      const OptionValue* const given = find_value(values, name);
      if (given != nullptr) {
        fail_bad_input(fmt::format("{} = {} does not go with --union-ratio", given->origin, given->text));
      }
    }
    return model_of_union_ratio(*ratio);
  }
  model.agreement = read_fraction(values, "agreement").value_or(model.agreement);
  model.topics = read_count(values, "topics", 0, kMaxTokens).value_or(model.topics);
  model.needles = read_count(values, "needles", 0, kMaxTokens).value_or(model.needles);
  return model;
}

void read_machine(const OptionValues& values, PlanRequest& request) {
  const std::string profile = read_text(values, "profile");
  request.profile = find_profile(profile.empty() ? "h200" : profile);
  request.nodes = static_cast<int>(read_count(values, "nodes", 1, kMaxRanks).value_or(1));
  request.ranks_per_node =
      static_cast<int>(read_count(values, "ranks-per-node", 1, kMaxRanks).value_or(request.profile.ranks_per_node));
  if (std::int64_t{request.nodes} * request.ranks_per_node > kMaxRanks) {
    fail_bad_input(fmt::format("nodes = {} times ranks-per-node = {} is above {} ranks", request.nodes,
                               request.ranks_per_node, kMaxRanks));
  }
  request.threads = static_cast<int>(read_count(values, "threads", 1, 4096).value_or(request.profile.threads));
  const auto gib = read_positive(values, "memory-gib", kMaxMemoryGib);
  request.memory_limit = gib ? static_cast<std::int64_t>(*gib * 1024.0 * 1024.0 * 1024.0)
                             : request.profile.memory_of_rank(request.ranks_per_node);
  const bool gpu = request.profile.backend == "cuda";
  const auto mib = read_count(values, "fetch-mib", 1, kMaxFetchMib);
  request.fetch_budget = mib ? *mib << 20 : gpu ? request.memory_limit / 4 : kHostFetchBytes;
  request.merge = read_merge(values).value_or(request.merge);
  request.balance = read_balance(values).value_or(request.balance);
  request.fetch = read_fetch(values).value_or(request.fetch);
  const OptionValue* const fetch = find_value(values, "fetch");
  if (!gpu && fetch != nullptr) {
    fail_bad_input(fmt::format("{} = {} has no meaning for profile {}, whose backend is cpu", fetch->origin,
                               fetch->text, request.profile.name));
  }
}

}  // namespace

PlanOptions parse_plan_options(const std::vector<std::string>& arguments, const Environment& environment) {
  const OptionValues values = read_option_layers(plan_descriptions(), arguments, environment);
  const PolicyOptions policy = read_policy(values);
  if (!is_sparse_engine_policy(policy.name)) {
    fail_bad_input(fmt::format("policy = {} cannot be planned; limit: policies of the sparse engine", policy.name));
  }
  PlanOptions options;
  options.policy_name = policy.name;
  options.json = read_text(values, "json");
  PlanRequest& request = options.request;
  request.problem = read_problem(values);
  request.policy = policy.apply(AttentionPolicy{});
  request.policy.validate(request.problem);
  request.model = read_model(values);
  read_machine(values, request);
  return options;
}

po::options_description plan_descriptions() {
  po::options_description all("", OptionGroup::kLineWidth, OptionGroup::kTextWidth);
  for (const OptionGroup& group :
       {layer_options(), policy_options(), machine_options(), data_options(), output_options()}) {
    all.add(group.options());
  }
  return all;
}

std::string plan_help() {
  std::ostringstream text;
  text << kHelpHead << plan_descriptions();
  return text.str();
}

}  // namespace ringmark::cluster
