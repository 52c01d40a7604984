#include "cluster/decode/decode_options.h"

#include <fmt/format.h>

#include <array>
#include <sstream>
#include <string_view>

#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

namespace po = boost::program_options;

constexpr std::int64_t kMaxRows = std::int64_t{1} << 20;
constexpr std::int64_t kMaxSkip = std::int64_t{1} << 40;
constexpr std::int64_t kMaxMib = std::int64_t{1} << 20;

constexpr std::array kExchanges = {runtime::Exchange::kAuto, runtime::Exchange::kPull, runtime::Exchange::kPush};
constexpr std::array kBackends = {kernels::Backend::kCpu, kernels::Backend::kCuda};

constexpr std::string_view kHelpHead =
    R"(ringmark decode: attention of new tokens over the K and V that a snapshot keeps, sharded over the ranks of the job.
New tokens join what is kept and attend as they would in one prefill of the whole.

  mpirun -n 4 ringmark prefill --input prompt.safetensors --snapshot kept
  mpirun -n 3 ringmark decode --snapshot kept --input steps.safetensors --output result.safetensors --save

The input holds rows of the tensors q, k, v and, where the model has retrieval queries, landmark_q, each
[rows, heads, head_dim]; optionally sequence [rows], which sequence each row continues, and position [rows], its place
there: rows that are kept already are then left out.
On SIGUSR1 and SIGTERM the state is kept as a new generation, and the same command goes on from there.
Values come from flags, else from environment variables (--cache-mib is RINGMARK_CACHE_MIB), else from the --config
file, else from the defaults below.
Exit codes: 0 done, 2 usage or bad input, 3 environment (memory, MPI), 4 a peer failed or a deadline passed,
75 checkpointed, run again to go on.
)";

OptionGroup input_options() {
  const DecodeOptions defaults;
  OptionGroup group("Input");
  group.add("snapshot", "DIR", "folder of kept K, V and landmarks; the newest complete generation counts")
      .add("input", "FILE", "safetensors file of the new tokens")
      .add("rows", "N", fmt::format("new tokens a step (default: {})", defaults.rows))
      .add("skip", "N", fmt::format("first rows of the input that are left out (default: {})", defaults.skip))
      .add("config", "FILE", "read options from lines of the form key = value, # begins a comment");
  return group;
}

OptionGroup execution_options() {
  OptionGroup group("Execution");
  group
      .add(
          "exchange", "NAME",
          "how a row reaches a chosen block of another rank: pull (the block comes), push (its owner attends to it) or "
          "auto (default: auto, the cheaper by a measurement at the start)")
      .add(
          "transport", "NAME",
          "how blocks move: auto, rma (one-sided), request or ucx; between GPUs auto, cuda-ipc or nccl (default: auto, "
          "probed at the start)")
      .add("backend", "NAME", "where blocks are kept and attended: cpu or cuda, one GPU a rank (default: cpu)")
      .add_switch("share-gpu", "let several ranks use one GPU instead of refusing it")
      .add("cache-mib", "MIB",
           "blocks of other ranks and decoded blocks that are held, MiB a rank (default: 64, more where one row "
           "needs more; between GPUs, only with nccl, 256)")
      .add("kv-dtype", "NAME",
           "how full chunks are kept: as-input, bf16, fp16, fp8, int8 or int4 (default: as in the snapshot)");
  add_execution_options(group);
  return group;
}

OptionGroup output_options() {
  OptionGroup group("Output");
  group.add("output", "FILE", "write the result as a safetensors file (default: none)")
      .add_switch("save", "keep the state after the last step as a new generation of the snapshot");
  add_report_options(group);
  return group;
}

std::string read_needed(const OptionValues& values, const char* name, const char* unit) {
  std::string text = read_text(values, name);
  if (text.empty()) fail_bad_input(fmt::format("--{} {} is not given", name, unit));
  return text;
}

// On a GPU blocks are kept as they came in, all of them in its memory, and read where they are.
void read_backend(const OptionValues& values, DecodeOptions& options) {
  options.backend = read_choice<kernels::Backend>(values, "backend", kBackends, [](kernels::Backend choice) {
                      return name_of(choice);
                    }).value_or(options.backend);
  options.transport = read_transport(values, options.backend);
  options.share_gpu = read_switch(values, "share-gpu");
  if (options.backend != kernels::Backend::kCuda) {
    if (!options.share_gpu) return;
    fail_bad_input(
        fmt::format("{} = true has no meaning without --backend cuda", find_value(values, "share-gpu")->origin));
  }
  const auto refuse = [&](const char* name, const char* limit) {
    const OptionValue* const given = find_value(values, name);
    fail_bad_input(
        fmt::format("{} = {} does not go with --backend cuda; limit: {}", given->origin, given->text, limit));
  };
  if (options.exchange == runtime::Exchange::kPush) refuse("exchange", "auto or pull");
  if (options.kv_format.value_or(kvstore::BlockFormat::kAsInput) != kvstore::BlockFormat::kAsInput) {
    refuse("kv-dtype", "as-input");
  }
  if (options.kv_budget_mib) refuse("kv-budget-mib", "not given");
}

}  // namespace

DecodeOptions parse_decode_options(const std::vector<std::string>& arguments, const Environment& environment) {
  const OptionValues values = read_option_layers(decode_descriptions(), arguments, environment);
  DecodeOptions options;
  options.snapshot = read_needed(values, "snapshot", "DIR");
  options.input = read_needed(values, "input", "FILE");
  options.output = read_text(values, "output");
  options.rows = read_count(values, "rows", 1, kMaxRows).value_or(options.rows);
  options.skip = read_count(values, "skip", 0, kMaxSkip).value_or(options.skip);
  options.save = read_switch(values, "save");
  options.exchange = read_choice<runtime::Exchange>(values, "exchange", kExchanges, [](runtime::Exchange choice) {
                       return name_of(choice);
                     }).value_or(options.exchange);
  options.kv_format = read_block_format(values);
  options.cache_mib = read_count(values, "cache-mib", 1, kMaxMib);
  read_run_options(values, options);
  read_backend(values, options);
  return options;
}

po::options_description decode_descriptions() {
  po::options_description all("", OptionGroup::kLineWidth, OptionGroup::kTextWidth);
  for (const OptionGroup& group : {input_options(), execution_options(), output_options()}) all.add(group.options());
  return all;
}

std::string decode_help() {
  std::ostringstream text;
  text << kHelpHead << decode_descriptions();
  return text.str();
}

}  // namespace ringmark::cluster
