// What `ringmark prefill` was asked to do. Checked as far as it can be without opening a file: every number is inside
// its limits and the options fit together; what depends on the file's shape is checked by AttentionProblem::validate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/options/option_layers.h"
#include "cluster/options/run_options.h"
#include "cluster/options/transport_name.h"
#include "cluster/prefill/compressive_options.h"
#include "cluster/prefill/dense_options.h"
#include "cluster/prefill/dilated_options.h"
#include "cluster/prefill/logit_options.h"
#include "cluster/prefill/logo_options.h"
#include "cluster/prefill/nsa_options.h"
#include "cluster/prefill/policy_options.h"
#include "comm/block_transport.h"
#include "core/dtype.h"
#include "core/problem.h"
#include "kernels/backend.h"
#include "kernels/positions/encoding.h"
#include "kvstore/block_codec.h"
#include "partition/layout.h"
#include "runtime/fetch_strategy.h"
#include "runtime/landmark_queries.h"
#include "runtime/merge_strategy.h"

namespace ringmark::cluster {

// A generated layer in which chosen needles must be found again.
struct PlantedOptions {
  std::int64_t tokens = 0;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 64;
  std::int64_t needles = 64;
  double agreement = 0.98;
  std::int64_t topics = 8;
  DType dtype = DType::kBfloat16;
};

// Only with --backend cuda.
struct GpuOptions {
  std::string kernels = "auto";  // auto, hopper, mma or simt
  runtime::Fetch fetch = runtime::Fetch::kAuto;
  bool share = false;  // several ranks on one GPU, by consent
};

struct PrefillOptions : RunOptions {
  // Exactly one of the two.
  std::string input;
  std::optional<PlantedOptions> planted;
  std::vector<std::int64_t> cu_seqlens;  // empty: one document
  std::string reuse;                     // folder of a snapshot; empty: everything is computed

  // Unset: the metadata of the file decides, without it the default of the policy.
  std::optional<std::int64_t> chunk;
  std::optional<double> scale;
  PolicyOptions policy;
  runtime::LandmarkQuery landmark_query = runtime::LandmarkQuery::kSlot;
  bool calibrate = false;               // retrieval queries are made of hidden states
  kernels::PositionEncoding positions;  // kind none: the input has its positions
  LogitOptions logits;

  std::optional<DenseOptions> dense;             // set: exact causal attention, which chooses nothing
  std::optional<NsaOptions> nsa;                 // set: the policy
  std::optional<CompressivePolicy> compressive;  // set: the policy, but for its memory, which the input may say
  std::optional<DilatedOptions> dilated;         // set: the policy
  std::optional<LogoOptions> logo;               // set: the policy
  runtime::Merge merge = runtime::Merge::kAuto;
  partition::Balance balance = partition::Balance::kZigzag;
  TransportName transport = TransportName::kAuto;
  kernels::Backend backend = kernels::Backend::kCpu;
  GpuOptions gpu;
  std::optional<std::int64_t> fetch_mib;  // unset: 64 for cpu; for cuda what the GPU has room for
  std::uint64_t seed = 1;

  std::string output;  // empty: none
  bool topk_chunks = false;
  std::string snapshot;  // folder; empty: none
  kvstore::BlockFormat kv_format = kvstore::BlockFormat::kAsInput;
  bool memory_plan = false;
  std::optional<double> recall;  // share of the queries whose recall is measured
};

// `arguments` stand behind the word prefill. Throws Error(kBadInput) in one line naming option, value and limit.
PrefillOptions parse_prefill_options(const std::vector<std::string>& arguments, const Environment& environment);

boost::program_options::options_description prefill_descriptions();
std::string prefill_help();

}  // namespace ringmark::cluster
