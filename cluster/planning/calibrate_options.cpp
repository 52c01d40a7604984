#include "cluster/planning/calibrate_options.h"

#include <fmt/format.h>

#include <array>
#include <sstream>
#include <string_view>

#include "cluster/options/layer_choices.h"
#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "cluster/prefill/prefill_options.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

namespace po = boost::program_options;

// Layers of a half and a quarter are measured too; below it stages take microseconds.
constexpr std::int64_t kLeastTokens = 4096;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
constexpr std::int64_t kCpuTokens = 32768;
constexpr std::int64_t kGpuTokens = 262144;
constexpr double kMaxDeadlineSeconds = 7 * 24 * 3600;
constexpr std::array kBackends = {kernels::Backend::kCpu, kernels::Backend::kCuda};
constexpr auto kTextOf = [](auto choice) { return name_of(choice); };

constexpr std::string_view kHelpHead =
    R"(ringmark calibrate: measures what this machine can do, as a profile for ringmark plan and simulate. Runs planted layers
of a few sizes on one rank, fits a line to each stage, and measures the links between the ranks of the job.

  ringmark calibrate --output machine.json
  mpirun -n 2 --map-by node ringmark calibrate --output machine.json
  ringmark plan --tokens 1m --nodes 4 --profile machine.json

Start it on two hosts to have the link between hosts, on two ranks of a host to have that inside. With --backend cuda it
measures the stages on one GPU; its links are those of the shipped profile h200, which the file says.
Values come from flags, else from environment variables (--head-dim is RINGMARK_HEAD_DIM), else from the --config file,
else from the defaults below.
Exit codes: 0 done, 2 usage or bad input, 3 environment (no GPU, MPI), 4 a peer failed or a deadline passed.
)";

struct Defaults {
  std::int64_t tokens, heads, kv_heads, head_dim, window;
};
constexpr Defaults defaults_of(kernels::Backend backend) {
  if (backend == kernels::Backend::kCuda) return {kGpuTokens, 32, 8, 128, 512};
  return {kCpuTokens, 4, 1, 64, 128};
}

}  // namespace

CalibrateOptions parse_calibrate_options(const std::vector<std::string>& arguments, const Environment& environment) {
  const OptionValues values = read_option_layers(calibrate_descriptions(), arguments, environment);
  CalibrateOptions options;
  options.output = read_text(values, "output");
  if (const std::string name = read_text(values, "name"); !name.empty()) options.name = name;
  options.backend = read_choice<kernels::Backend>(values, "backend", kBackends, kTextOf).value_or(options.backend);
  const Defaults usual = defaults_of(options.backend);
  AttentionProblem& problem = options.problem;
  problem.heads = usual.heads;
  problem.kv_heads = usual.kv_heads;
  problem.head_dim = usual.head_dim;
  read_head_shape_into(values, problem);
  problem.chunk_size = read_count(values, "chunk", 1, kMaxChunkSize).value_or(problem.chunk_size);
  problem.landmark_slots = true;
  options.tokens = read_count(values, "tokens", kLeastTokens, kMostTokens).value_or(usual.tokens);
  options.policy.window = read_count(values, "window", 0, kMostTokens).value_or(usual.window);
  options.policy.topk = read_count(values, "topk", 1, kMaxTopk).value_or(options.policy.topk);
  options.repeats = read_count(values, "repeats", 1, 1000).value_or(options.repeats);
  options.threads = read_count(values, "threads", 1, 4096).value_or(options.threads);
  options.transport = read_transport(values, kernels::Backend::kCpu);
  options.deadline_seconds = read_positive(values, "deadline", kMaxDeadlineSeconds).value_or(options.deadline_seconds);
  problem.tokens = options.tokens;
  problem.validate();
  options.policy.validate(problem);
  return options;
}

po::options_description calibrate_descriptions() {
  const CalibrateOptions defaults;
  OptionGroup group("Options");
  group.add("output", "FILE", "write the profile (default: none, it is only printed)")
      .add("name", "TEXT", fmt::format("what the profile calls itself (default: {})", defaults.name))
      .add("backend", "NAME", "cpu or cuda (default: cpu)")
      .add("tokens", "N", fmt::format("tokens of the longest layer (default: {}, on a GPU {})", kCpuTokens, kGpuTokens))
      .add("heads", "N", "query heads (default: 4, on a GPU 32)")
      .add("kv-heads", "N", "key/value heads, a divisor of heads (default: 1, on a GPU 8)")
      .add("head-dim", "N", "elements of a head (default: 64, on a GPU 128)")
      .add("chunk", "TOKENS", "tokens of a chunk (default: 64)")
      .add("window", "TOKENS", "window of the middle policy (default: 128, on a GPU 512)")
      .add("topk", "K", fmt::format("chunks chosen by the middle policy (default: {})", defaults.policy.topk))
      .add("dtype", "NAME", "bf16, fp16 or fp32 (default: bf16)")
      .add("repeats", "N",
           fmt::format("runs of each layer, of which the quickest counts (default: {})", defaults.repeats))
      .add("threads", "N", fmt::format("threads of a rank (default: {})", defaults.threads))
      .add("transport", "NAME", "how blocks move between ranks: auto, rma, request or ucx (default: auto)")
      .add("deadline", "SECONDS",
           fmt::format("longest wait for other ranks, seconds (default: {})", defaults.deadline_seconds))
      .add("config", "FILE", "read options from lines of the form key = value, # begins a comment")
      .add_switch("help", "print this text");
  po::options_description all("", OptionGroup::kLineWidth, OptionGroup::kTextWidth);
  all.add(group.options());
  return all;
}

std::string calibrate_help() {
  std::ostringstream text;
  text << kHelpHead << calibrate_descriptions();
  return text.str();
}

}  // namespace ringmark::cluster
