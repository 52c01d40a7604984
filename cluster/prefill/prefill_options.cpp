#include "cluster/prefill/prefill_options.h"

#include <fmt/format.h>

#include <array>
#include <boost/program_options/options_description.hpp>
#include <sstream>
#include <string_view>

#include "cluster/options/layer_choices.h"
#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "cluster/prefill/landmark_options.h"
#include "cluster/prefill/position_options.h"
#include "cluster/prefill/recall_options.h"
#include "core/error.h"
#include "kvstore/prefix_hash.h"

namespace ringmark::cluster {
namespace {

namespace po = boost::program_options;

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMaxFetchMib = std::int64_t{1} << 20;

constexpr std::array kBackends = {kernels::Backend::kCpu, kernels::Backend::kReference, kernels::Backend::kCuda};
// Options that only --backend cuda understands.
constexpr std::array kGpuOnly = {"kernels", "fetch", "share-gpu"};
// Options that describe a generated layer and mean nothing for a file.
constexpr std::array kPlantedOnly = {"heads", "kv-heads", "head-dim", "needles", "agreement", "topics", "dtype"};

constexpr auto kTextOf = [](auto choice) { return name_of(choice); };
constexpr std::string_view kHelpHead =
    R"(ringmark prefill: sparse attention of one layer over one long sequence, sharded over the ranks of the MPI job.
Every query attends to its local window and to the topk chunks with the highest landmark score.

  mpirun -n 4 ringmark prefill --input layer.safetensors --output result.safetensors
  ringmark prefill --planted 128k --topk 16 --digest

The input holds the tensors q, k, v and, where the model has retrieval queries, landmark_q, each
[tokens, heads, head_dim].
Token counts take the suffixes k (1024), m and g. Values come from flags, else from environment variables
(--head-dim is RINGMARK_HEAD_DIM), else from the --config file, else from the defaults below.
On SIGUSR1 and SIGTERM a run with --output or --snapshot keeps the rows that are done, and the same command goes on from
there; --backend cuda finishes its layer instead.
Exit codes: 0 done, 2 usage or bad input, 3 environment (memory, MPI), 4 a peer failed or a deadline passed,
75 checkpointed, run again to go on.
)";

OptionGroup input_options() {
  OptionGroup group("Input (exactly one of --input and --planted)");
  group.add("input", "FILE", "safetensors file to read")
      .add("planted", "TOKENS", "generate a layer of this many tokens instead, with needles to be found again")
      .add("cu-seqlens", "LIST",
           "packed documents: their first tokens, then the number of tokens, separated by commas "
           "(default: one document)")
      .add("reuse", "DIR",
           "compute only what the snapshot in this folder does not keep: of every document what follows the chunks "
           "whose "
           "token_ids a kept sequence begins with, too (default: everything)")
      .add("config", "FILE", "read options from lines of the form key = value, # begins a comment");
  return group;
}

OptionGroup execution_options() {
  const PrefillOptions defaults;
  OptionGroup group("Execution");
  group.add("merge", "NAME", "how ranks find the global choice: auto, scores or landmarks (default: auto, the cheaper)")
      .add("balance", "NAME",
           fmt::format("how chunks are dealt to ranks: contiguous, zigzag or rotate (default: {})",
                       name_of(defaults.balance)))
      .add("transport", "NAME",
           "how blocks move: auto, rma (one-sided), request or ucx; between GPUs auto, cuda-ipc or nccl "
           "(default: auto, probed at the start)")
      .add("backend", "NAME", "kernels: cpu, cuda, or reference, which is fp64 and slow (default: cpu)")
      .add("fetch-mib", "MIB",
           "received blocks held at once, MiB a rank (default: 64; on a GPU a quarter of its free memory)")
      .add("seed", "N",
           fmt::format("seed of generated input and of the queries that --recall looks at (default: {})",
                       defaults.seed));
  add_execution_options(group);
  return group;
}

OptionGroup gpu_options() {
  OptionGroup group("GPUs (only with --backend cuda)");
  group
      .add("kernels", "NAME",
           "hopper (wgmma), mma (compute capability 8.0 and later) or simt (any shape) (default: auto, the fastest "
           "that the shape and the GPU allow)")
      .add("fetch", "NAME",
           "blocks (the chosen ones) or stream (whole shards round the ring) (default: auto, the cheaper)")
      .add_switch("share-gpu", "let several ranks use one GPU instead of refusing it");
  return group;
}

OptionGroup output_options() {
  OptionGroup group("Output");
  group.add("output", "FILE", "write the result as a safetensors file (default: none)")
      .add_switch("topk-chunks", "also write the chosen chunks, as the tensor topk_chunks; needs --output")
      .add("snapshot", "DIR", "keep K, V and landmarks as a new generation in this folder (default: none)")
      .add("kv-dtype", "NAME",
           "how the snapshot keeps full chunks: as-input, bf16, fp16, fp8, int8 or int4 (default: as-input)")
      .add_switch("memory-plan", "print what each buffer will take, before anything is allocated");
  add_report_options(group);
  return group;
}

OptionGroup planted_options() {
  const PlantedOptions defaults;
  OptionGroup group("Planted input (only with --planted)");
  group.add("heads", "N", fmt::format("query heads (default: {})", defaults.heads))
      .add("kv-heads", "N", fmt::format("key/value heads, a divisor of heads (default: {})", defaults.kv_heads))
      .add("head-dim", "N", fmt::format("elements of a head (default: {})", defaults.head_dim))
      .add("needles", "N", fmt::format("planted needles (default: {})", defaults.needles))
      .add("agreement", "X",
           fmt::format("share of queries that equal the one before, 0 to 1 (default: {})", defaults.agreement))
      .add("topics", "N",
           fmt::format("directions that queries return to; 0: always a fresh one (default: {})", defaults.topics))
      .add("dtype", "NAME", fmt::format("bf16, fp16 or fp32 (default: {})", name_of(defaults.dtype)));
  return group;
}

PlantedOptions read_planted(const OptionValues& values, std::int64_t tokens) {
  PlantedOptions planted;
  planted.tokens = tokens;
  read_head_shape_into(values, planted);
  planted.needles = read_count(values, "needles", 0, kMaxTokens).value_or(planted.needles);
  planted.agreement = read_fraction(values, "agreement").value_or(planted.agreement);
  planted.topics = read_count(values, "topics", 0, kMaxTokens).value_or(planted.topics);
  return planted;
}

void read_input(const OptionValues& values, PrefillOptions& options) {
  const OptionValue* const input = find_value(values, "input");
  const OptionValue* const planted = find_value(values, "planted");
  if (input == nullptr && planted == nullptr) {
    fail_bad_input("neither --input FILE nor --planted TOKENS is given; exactly one is needed");
  }
  if (input != nullptr && planted != nullptr) {
    fail_bad_input(fmt::format("both {} = {} and {} = {} are given; exactly one is needed", input->origin, input->text,
                               planted->origin, planted->text));
  }
  options.input = read_text(values, "input");
  if (planted != nullptr) options.planted = read_planted(values, *read_count(values, "planted", 1, kMaxTokens));
  for (const char* name : kPlantedOnly) {
    const OptionValue* const given = find_value(values, name);
    if (planted == nullptr && given != nullptr) {
      fail_bad_input(fmt::format("{} = {} has no meaning without --planted", given->origin, given->text));
    }
  }
  options.cu_seqlens = read_counts(values, "cu-seqlens").value_or(options.cu_seqlens);
}

void read_attention(const OptionValues& values, PrefillOptions& options) {
  options.policy = read_policy(values);
  options.chunk = read_count(values, "chunk", 1, kMaxChunkSize);
  options.scale = read_positive(values, "scale", 1e6);
}

void read_execution(const OptionValues& values, PrefillOptions& options) {
  const std::string_view policy = options.policy.name;
  if (!is_sparse_engine_policy(policy)) refuse_sparse_engine_options(values, policy);
  if (policy == "dense") {
    options.dense = read_dense(values);
  } else if (policy == "dilated") {
    options.dilated = read_dilated(values);
  } else if (policy == "logo") {
    options.logo = read_logo(values);
  } else if (policy == "nsa") {
    options.nsa = read_nsa(values);
  } else if (policy == "compressive") {
    options.compressive = read_compressive(values);
  } else {
    options.merge = read_merge(values).value_or(options.merge);
  }
  options.balance = read_balance(values).value_or(options.balance);
  options.backend = read_choice<kernels::Backend>(values, "backend", kBackends, kTextOf).value_or(options.backend);
  options.fetch_mib = read_count(values, "fetch-mib", 1, kMaxFetchMib);
  options.seed = read_seed(values, "seed").value_or(options.seed);
}

void read_gpu(const OptionValues& values, PrefillOptions& options) {
  const bool gpu = options.backend == kernels::Backend::kCuda;
  for (const char* name : kGpuOnly) {
    const OptionValue* const given = find_value(values, name);
    if (!gpu && given != nullptr && given->text != "false") {
      fail_bad_input(fmt::format("{} = {} has no meaning without --backend cuda", given->origin, given->text));
    }
  }
  options.transport = read_transport(values, options.backend);
  const std::vector<std::string> kernels = {"auto", "hopper", "mma", "simt"};
  options.gpu.kernels = kernels[read_choice_index(values, "kernels", kernels).value_or(0)];
  options.gpu.fetch = read_fetch(values).value_or(options.gpu.fetch);
  options.gpu.share = read_switch(values, "share-gpu");
}

// Snapshots, their reuse and the kernels of a GPU know one form of selection.
void check_policy(const OptionValues& values, const PrefillOptions& options) {
  if (is_kept_policy(options.policy) || !is_sparse_engine_policy(options.policy.name)) return;
  const auto refuse = [&](const char* name) {
    const OptionValue* const given = find_value(values, name);
    if (given == nullptr) return;
    fail_bad_input(
        fmt::format("{} = {} does not go with --policy {}{}", given->origin, given->text, options.policy.name,
                    options.policy.choice ? fmt::format(" --choice {}", name_of(*options.policy.choice)) : ""));
  };
  refuse("snapshot");
  refuse("reuse");
  if (options.backend == kernels::Backend::kCuda) refuse("backend");
}

// Positions in a cache are for rows that the command rotates and for the kernels of the cpu; what is kept or measured
// knows where keys are in the text.
void check_landmark_positions(const OptionValues& values, const PrefillOptions& options) {
  if (options.policy.landmark_positions != LandmarkPositions::kStingy) return;
  const OptionValue* const positions = find_value(values, "landmark-positions");
  if (!options.positions.rotates()) {
    fail_bad_input(fmt::format("{} = stingy needs --rope: it moves keys by rotating them", positions->origin));
  }
  for (const char* name : {"snapshot", "reuse", "recall"}) {
    const OptionValue* const given = find_value(values, name);
    if (given == nullptr) continue;
    fail_bad_input(fmt::format("{} = {} does not go with {} = stingy", given->origin, given->text, positions->origin));
  }
  if (options.backend == kernels::Backend::kCpu) return;
  fail_bad_input(fmt::format("{} = {} does not go with {} = stingy; limit: cpu", find_value(values, "backend")->origin,
                             name_of(options.backend), positions->origin));
}

// Blocks that spill are those in host memory that peers read.
void check_budget(const OptionValues& values, const PrefillOptions& options) {
  if (!options.kv_budget_mib || options.backend == kernels::Backend::kCpu) return;
  const OptionValue* const given = find_value(values, "kv-budget-mib");
  fail_bad_input(fmt::format("{} = {} does not go with --backend {}; limit: cpu", given->origin, given->text,
                             name_of(options.backend)));
}

void read_output(const OptionValues& values, PrefillOptions& options) {
  options.output = read_text(values, "output");
  options.topk_chunks = read_switch(values, "topk-chunks");
  options.memory_plan = read_switch(values, "memory-plan");
  if (options.topk_chunks && options.output.empty()) {
    fail_bad_input(fmt::format("{} needs --output FILE to write into", find_value(values, "topk-chunks")->origin));
  }
}

void read_snapshot(const OptionValues& values, PrefillOptions& options) {
  options.snapshot = read_text(values, "snapshot");
  options.kv_format = read_block_format(values).value_or(options.kv_format);
  const OptionValue* const format = find_value(values, "kv-dtype");
  if (options.snapshot.empty() && format != nullptr) {
    fail_bad_input(fmt::format("{} = {} has no meaning without --snapshot", format->origin, format->text));
  }
  if (!options.snapshot.empty() && options.backend != kernels::Backend::kCpu) {
    fail_bad_input(fmt::format("{} = {} cannot be written by --backend {}; limit: cpu",
                               find_value(values, "snapshot")->origin, options.snapshot, name_of(options.backend)));
  }
}

void read_reuse(const OptionValues& values, PrefillOptions& options) {
  options.reuse = read_text(values, "reuse");
  if (options.reuse.empty()) return;
  const auto refuse = [&](const char* name, const std::string& why) {
    const OptionValue* const given = find_value(values, name);
    fail_bad_input(fmt::format("{} = {} does not go with --reuse: {}", given->origin, given->text, why));
  };
  if (!kvstore::can_hash_prefixes()) {
    fail_bad_input(fmt::format("{} = {} needs prefix hashes, and this build has no OpenSSL",
                               find_value(values, "reuse")->origin, options.reuse));
  }
  if (options.positions.rotates()) refuse("rope", "a snapshot does not say by which positions its keys were rotated");
  if (options.planted) refuse("planted", "a generated layer has no token_ids");
  if (options.backend != kernels::Backend::kCpu) refuse("backend", "limit: cpu");
  if (find_value(values, "balance") != nullptr && options.balance != partition::Balance::kRotate) {
    refuse("balance", "limit: rotate");
  }
}

}  // namespace

PrefillOptions parse_prefill_options(const std::vector<std::string>& arguments, const Environment& environment) {
  const OptionValues values = read_option_layers(prefill_descriptions(), arguments, environment);
  PrefillOptions options;
  read_input(values, options);
  read_attention(values, options);
  read_execution(values, options);
  read_run_options(values, options);
  check_budget(values, options);
  check_policy(values, options);
  read_gpu(values, options);
  read_output(values, options);
  read_snapshot(values, options);
  options.positions = read_position_encoding(values);
  options.landmark_query = read_landmark_query(values);
  options.logits = read_logit_options(values);
  check_landmark_positions(values, options);
  options.calibrate = read_calibrate(values);
  read_reuse(values, options);
  options.recall = read_recall(values, options.policy.name, options.backend);
  return options;
}

po::options_description prefill_descriptions() {
  po::options_description all("", OptionGroup::kLineWidth, OptionGroup::kTextWidth);
  for (const OptionGroup& group :
       {input_options(), policy_options(), landmark_options(), dense_options(), nsa_options(), compressive_options(),
        dilated_options(), logo_options(), logit_options(), position_options(), execution_options(), gpu_options(),
        output_options(), recall_options(), planted_options()}) {
    all.add(group.options());
  }
  return all;
}

std::string prefill_help() {
  std::ostringstream text;
  text << kHelpHead << prefill_descriptions();
  return text.str();
}

}  // namespace ringmark::cluster
