#include "cluster/backward/backward_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <boost/program_options/options_description.hpp>
#include <sstream>
#include <string_view>

#include "cluster/options/layer_choices.h"
#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "cluster/prefill/policy_options.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

namespace po = boost::program_options;

constexpr std::int64_t kMaxMib = std::int64_t{1} << 20;

constexpr std::array kBackends = {kernels::Backend::kCpu, kernels::Backend::kReference};
// Policies whose backward pass there is.
constexpr std::array<std::string_view, 3> kPolicies = {"hils", "mean", "dense"};

constexpr auto kTextOf = [](auto choice) { return name_of(choice); };
constexpr std::string_view kHelpHead =
    R"(ringmark backward: gradients of q, k, v and landmark_q of one layer from that of its output, sharded over the ranks of
the MPI job. Runs the forward first; the choice of chunks is held fixed.

  mpirun -n 4 ringmark backward --input layer.safetensors --gradient do.safetensors --output gradients.safetensors

--input is what prefill reads; --gradient holds the tensor do [tokens, heads, head_dim]; the output holds dq, dk, dv and,
where the input has landmark_q and the policy is hils, dlandmark_q, in fp32.
Exit codes: 0 done, 2 usage or bad input, 3 environment (memory, MPI), 4 a peer failed or a deadline passed.
)";

OptionGroup file_options() {
  OptionGroup group("Files");
  group.add("input", "FILE", "safetensors file with the layer")
      .add("gradient", "FILE", "safetensors file with the gradient of the layer's output, tensor do")
      .add("output", "FILE", "write the gradients as a safetensors file (default: none)")
      .add("cu-seqlens", "LIST",
           "packed documents: their first tokens, then the number of tokens (default: the file's)")
      .add("config", "FILE", "read options from lines of the form key = value, # begins a comment");
  return group;
}

OptionGroup execution_options() {
  OptionGroup group("Execution");
  group.add("merge", "NAME", "how ranks find the global choice: auto, scores or landmarks (default: auto)")
      .add("balance", "NAME", "how chunks are dealt to ranks: contiguous, zigzag or rotate (default: zigzag)")
      .add("transport", "NAME", "how blocks move: auto, rma, request or ucx (default: auto, probed at the start)")
      .add("backend", "NAME", "kernels: cpu, or reference, which is fp64 and slow (default: cpu)")
      .add("fetch-mib", "MIB", "received blocks held at once, MiB a rank (default: 64)")
      .add("gradient-mib", "MIB", "gradients of keys and values on their way at once, MiB a rank (default: 256)");
  add_execution_options(group);
  return group;
}

OptionGroup report_options() {
  OptionGroup group("Report");
  add_report_options(group);
  return group;
}

void read_files(const OptionValues& values, BackwardOptions& options) {
  options.input = read_text(values, "input");
  options.gradient = read_text(values, "gradient");
  options.output = read_text(values, "output");
  if (options.input.empty()) fail_bad_input("no --input FILE is given");
  if (options.gradient.empty()) fail_bad_input("no --gradient FILE is given");
}

void read_attention(const OptionValues& values, BackwardOptions& options) {
  options.cu_seqlens = read_counts(values, "cu-seqlens").value_or(options.cu_seqlens);
  options.chunk = read_count(values, "chunk", 1, kMaxChunkSize);
  options.scale = read_positive(values, "scale", 1e6);
  options.policy = read_policy(values);
  if (std::find(kPolicies.begin(), kPolicies.end(), options.policy.name) == kPolicies.end()) {
    fail_bad_input(
        fmt::format("policy {} has no backward pass; limit: {}", options.policy.name, fmt::join(kPolicies, ", ")));
  }
  if (!options.exact()) return;
  // Its forward gathers the keys, whose bits are those of one rank, and nothing is chosen.
  for (const char* name : {"merge", "digest"}) {
    const OptionValue* const given = find_value(values, name);
    if (given == nullptr || given->text == "false") continue;
    fail_bad_input(
        fmt::format("{} = {} has no meaning in the backward pass of --policy dense", given->origin, given->text));
  }
}

void read_execution(const OptionValues& values, BackwardOptions& options) {
  options.merge = read_merge(values).value_or(options.merge);
  options.balance = read_balance(values).value_or(options.balance);
  options.backend = read_choice<kernels::Backend>(values, "backend", kBackends, kTextOf).value_or(options.backend);
  options.transport = read_transport(values, options.backend);
  options.fetch_mib = read_count(values, "fetch-mib", 1, kMaxMib);
  options.gradient_mib = read_count(values, "gradient-mib", 1, kMaxMib);
}

}  // namespace

BackwardOptions parse_backward_options(const std::vector<std::string>& arguments, const Environment& environment) {
  const OptionValues values = read_option_layers(backward_descriptions(), arguments, environment);
  BackwardOptions options;
  read_files(values, options);
  read_attention(values, options);
  read_execution(values, options);
  read_run_options(values, options);
  return options;
}

po::options_description backward_descriptions() {
  po::options_description all("", OptionGroup::kLineWidth, OptionGroup::kTextWidth);
  for (const OptionGroup& group : {file_options(), policy_options(), execution_options(), report_options()}) {
    all.add(group.options());
  }
  return all;
}

std::string backward_help() {
  std::ostringstream text;
  text << kHelpHead << backward_descriptions();
  return text.str();
}

}  // namespace ringmark::cluster
