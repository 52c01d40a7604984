// Layers for tests: a whole layer in memory, its shards, and a distributed run whose result is gathered in token order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "core/problem.h"
#include "kernels/reference/attention.h"
#include "partition/layout.h"
#include "runtime/decode_engine.h"
#include "runtime/layer_shard.h"
#include "runtime/prefill.h"

namespace ringmark::test {

struct TestLayer {
  AttentionProblem problem;
  AttentionPolicy policy;
  std::vector<std::byte> q, retrieval_q, k, v;  // whole sequence; retrieval_q empty: same as q
  std::vector<std::byte> landmark_q = {};       // [chunks, H, d] landmark queries that are no rows; empty: they are
  std::vector<std::byte> sink_q = {};           // empty: q attends to sinks, too

  runtime::LayerShard shard(const partition::Layout& layout, RankId rank) const;
  kernels::reference::Layer widened() const;
  std::vector<TokenId> tokens() const;
};

// The usual scale, 1 / sqrt(d).
AttentionProblem problem_of(std::int64_t tokens, std::int64_t chunk_size, std::int64_t heads, std::int64_t kv_heads,
                            std::int64_t head_dim, DType dtype);

// Values as a tensor of a layer holds them.
std::vector<std::byte> stored(const std::vector<float>& values, DType dtype = DType::kFloat32);

// N(0, 1) values. With `tied`, keys repeat every few chunks and queries every few tokens, so that scores tie exactly.
TestLayer random_layer(const AttentionProblem& problem, const AttentionPolicy& policy, std::uint64_t seed,
                       bool tied = false);

// Tokens [begin, end) as a layer of one document.
TestLayer slice(const TestLayer& layer, std::int64_t begin, std::int64_t end);

// A fetch budget that is just enough for any single row.
std::int64_t needed_budget(const TestLayer& layer);

// A kept layer, what decodes over it, and the transports that it needs, the outermost last.
struct TestDecoder {
  std::vector<std::unique_ptr<comm::BlockTransport>> transports;
  std::unique_ptr<runtime::DecodeEngine> engine;
};

// Largest difference of two results that were merged in different orders, of N(0, 1) values and usual logits.
inline constexpr double kMergeError = 4e-6;

struct DecodeSetting {
  runtime::DecodeOptions options;
  comm::TransportChoice transport = comm::TransportChoice::kAuto;
  // What stands between the decoder and a transport of host memory; empty: nothing.
  std::function<std::unique_ptr<comm::BlockTransport>(comm::Communicator&, comm::BlockTransport&)> wrap = {};
};

// What runs a layer: the engine that the test binary was linked with (support/cpu_engine.cpp, support/gpu_engine.cpp),
// so that every backend passes the same tests.
class Engine {
 public:
  virtual ~Engine() = default;
  // Collective: chooses a transport and runs.
  virtual runtime::PrefillResult prefill(comm::Communicator& communicator, comm::TransportChoice transport,
                                         const AttentionProblem& problem, const AttentionPolicy& policy,
                                         const partition::Layout& layout, runtime::LayerShard& shard,
                                         const runtime::PrefillOptions& options) const = 0;
  // Collective: an empty layer.
  virtual TestDecoder decoder(comm::Communicator& communicator, const runtime::KeptShape& shape,
                              const DecodeSetting& setting) const = 0;
  // Largest difference of decoded results from those of one prefill; 0: the same bits.
  virtual double decode_error(const AttentionProblem& problem, const AttentionPolicy& policy,
                              runtime::Exchange exchange) const = 0;
  // Largest error of o against fp64 on N(0, 1) values: rounding to fp32, or of the weights to the storage type.
  virtual double output_error(const AttentionProblem& problem, const AttentionPolicy& policy) const = 0;
  // Of lse, and of scores: margins below it may go either way.
  virtual double lse_error() const = 0;
  // True when the random layers should mostly be such as tensor cores take.
  virtual bool wants_tensor_shapes() const = 0;
  // False skips the tests: no GPU here.
  virtual bool available() const = 0;
};
const Engine& engine_under_test();

// Everything in token order.
struct GatheredResult {
  std::vector<float> out;
  std::vector<float> lse;
  std::vector<std::int32_t> chunks;  // [N, choosers, K]
  std::uint64_t digest = 0;
  std::int64_t bytes_fetched = 0;
};

// Collective.
GatheredResult gather_result(comm::Communicator& communicator, const AttentionProblem& problem,
                             const partition::Layout& layout, const runtime::PrefillResult& result);

// Collective. Output buffers of the engine are its own; fetch arenas, tables and lists are checked by their results.
GatheredResult run_prefill(comm::Communicator& communicator, comm::TransportChoice transport, const TestLayer& layer,
                           partition::Balance balance, const runtime::PrefillOptions& options);

kernels::reference::Result run_reference(const TestLayer& layer);

// The largest difference, as is; NaN or a NaN difference counts as infinite.
double max_difference(const std::vector<float>& got, const std::vector<double>& want);

// One line that names the problem, for failure messages.
std::string describe(const TestLayer& layer);

}  // namespace ringmark::test
