// What a decode step costs on one GPU by the length of what is kept, for one new token and for several at once, against
// the bytes that it cannot do without: the landmarks. usage: decode_step_bench [tokens ...]
//
// The choices and results of some rows are compared with those of the CPU over the same kept layer, at the first
// length; a wrong answer ends it with exit code 1.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "bench/gpu/roofline.h"
#include "bench/gpu/timing.h"
#include "comm/cuda/choose_device_transport.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "kernels/select_chunks.h"
#include "runtime/cuda/decode.h"

namespace ringmark {
namespace {

constexpr std::int64_t kFillRows = 8192;
constexpr std::int64_t kSpareRows = 1024;  // so that the rows of every fill can begin elsewhere
constexpr std::int64_t kNewRows = 4096;
constexpr int kWarmUp = 20;
constexpr int kTimed = 200;
constexpr std::int64_t kTogether[] = {1, 16};  // new tokens a step
constexpr std::int64_t kChecked = 6;
constexpr double kBound = 2e-3;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

AttentionProblem problem_of(std::int64_t tokens) {
  AttentionProblem problem;
  problem.tokens = tokens + kNewRows;
  problem.heads = 32;
  problem.kv_heads = 8;
  problem.head_dim = 128;
  problem.scale = 1.0f / std::sqrt(128.0f);
  problem.landmark_slots = true;
  problem.validate();
  return problem;
}

// N(0, 1) rows that every fill takes anew from another place on.
class Rows {
 public:
  explicit Rows(const AttentionProblem& problem)
      : problem_(problem),
        sequences_(size(kFillRows), 0),
        q_(normal(problem.heads, 1)),
        k_(normal(problem.kv_heads, 2)),
        v_(normal(problem.kv_heads, 3)) {}

  runtime::NewTokens view(std::int64_t first, std::int64_t count) const {
    const std::int64_t begin = first / kFillRows * 7 % kSpareRows + first % kFillRows;
    const auto of = [&](const std::vector<std::byte>& bytes, std::int64_t heads) {
      const RowsView all{bytes.data(), problem_.dtype, kFillRows + kSpareRows, heads, problem_.head_dim};
      return all.slice(begin, begin + count);
    };
    const RowsView queries = of(q_, problem_.heads);
    return {std::span(sequences_).first(size(count)), queries, queries, of(k_, problem_.kv_heads),
            of(v_, problem_.kv_heads)};
  }

 private:
  std::vector<std::byte> normal(std::int64_t heads, std::uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> values;
    std::vector<float> floats(size((kFillRows + kSpareRows) * heads * problem_.head_dim));
    for (float& value : floats) value = values(random);
    std::vector<std::byte> bytes(floats.size() * 2);
    narrow(floats.data(), problem_.dtype, static_cast<std::int64_t>(floats.size()), bytes.data());
    return bytes;
  }

  AttentionProblem problem_;
  std::vector<std::int64_t> sequences_;
  std::vector<std::byte> q_, k_, v_;
};

template <class Append>
void fill(std::int64_t tokens, Append append) {
  for (std::int64_t first = 0; first < tokens; first += kFillRows) append(first, std::min(kFillRows, tokens - first));
}

// Whether the GPU chooses and attends as the CPU does. Both layers hold `tokens` tokens.
bool agree(comm::Communicator& ranks, const runtime::KeptShape& shape, std::int64_t tokens, const Rows& rows,
           runtime::cuda::DeviceDecoder& gpu, std::int64_t& next) {
  const auto chosen = comm::choose_transport(ranks, comm::TransportChoice::kAuto);
  runtime::KeptLayer kept(ranks, *chosen.transport, shape, 16);
  fill(tokens, [&](std::int64_t first, std::int64_t count) { kept.append("fill", rows.view(first, count)); });
  runtime::DecodeOptions options;
  options.threads = 16;
  runtime::Decoder cpu(ranks, *chosen.transport, kept, options);
  const runtime::DecodeStep want = cpu.step(rows.view(next, kChecked));
  const runtime::DecodeStep got = gpu.step(rows.view(next, kChecked), false);
  next += kChecked;
  double error = 0.0;
  for (std::size_t i = 0; i < want.out.size(); ++i)
    error = std::max(error, std::fabs(double{got.out[i]} - want.out[i]));
  const bool same = got.selection.chunks == want.selection.chunks;
  fmt::print("{} rows after {} tokens against the CPU: {}, largest error of o {:.1e}\n", kChecked, tokens,
             same ? "the same chunks" : "OTHER CHUNKS", error);
  chosen.transport->retire();
  return same && error <= kBound;
}

// What a step cannot do without, the landmark records, and what dense attention would read, all K and V.
struct Bytes {
  double landmarks, all;
};
Bytes bytes_of(const runtime::KeptShape& shape, std::int64_t tokens) {
  const AttentionProblem& p = shape.problem;
  const std::int64_t chunks = tokens / p.chunk_size;
  const std::int64_t record = shape.landmark_shape().record_floats() * static_cast<std::int64_t>(sizeof(float));
  return {static_cast<double>(chunks * record),
          static_cast<double>(2 * tokens * p.kv_heads * p.head_dim * size_of(p.dtype))};
}

void time_steps(const runtime::KeptShape& shape, std::int64_t tokens, const Rows& rows,
                runtime::cuda::DeviceDecoder& gpu, std::int64_t& next) {
  for (const std::int64_t together : kTogether) {
    std::vector<double> times;
    for (int step = 0; step < kWarmUp + kTimed; ++step) {
      const runtime::NewTokens tile = rows.view(next, together);
      const auto start = std::chrono::steady_clock::now();
      gpu.step(tile, false);
      const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
      if (step >= kWarmUp) times.push_back(time.count());
      next += together;
    }
    std::sort(times.begin(), times.end());
    const auto at = [&](double share) { return times[static_cast<std::size_t>(share * (kTimed - 1))]; };
    const Bytes bytes = bytes_of(shape, tokens);
    const double floor = bytes.landmarks / bench::kCopyRate * 1e6, dense = bytes.all / bench::kCopyRate * 1e6;
    fmt::print("{:>8} {:>5} | {:>7.1f} {:>7.1f} {:>7.1f} | {:>7.1f} {:>6.2f} | {:>8.1f} {:>6.2f}\n", tokens, together,
               at(0.5), at(0.1), at(0.9), floor, at(0.5) / floor, dense, dense / at(0.5));
  }
}

bool run(comm::Communicator& ranks, const std::vector<std::int64_t>& lengths) {
  bool right = true;
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    const std::int64_t tokens = lengths[n];
    runtime::KeptShape shape;
    shape.problem = problem_of(tokens);
    shape.policy.window = 512;
    const auto chosen = comm::cuda::choose_device_transport(ranks, comm::cuda::DeviceTransportChoice::kAuto);
    runtime::cuda::DeviceDecoder gpu(ranks, *chosen.transport, shape, {});
    const Rows rows(shape.problem);
    runtime::cuda::StepRows uploaded(gpu.sequences(), RankId(0), shape.problem.kv_heads);
    fill(tokens, [&](std::int64_t first, std::int64_t count) {
      const runtime::NewTokens part = rows.view(first, count);
      uploaded.upload(part, gpu.sequences().place(part.sequences), gpu.stream());
      gpu.layer().append(part, uploaded);
      ringmark::cuda::check(cudaStreamSynchronize(gpu.stream()), "fill the layer");
    });
    std::int64_t next = tokens;
    if (n == 0) {
      right = agree(ranks, shape, tokens, rows, gpu, next);
      fmt::print("H=32 Hkv=8 d=128 S=64 W=512 K=16 bf16, {} steps; microseconds: median, 10th and 90th percentile\n",
                 kTimed);
      fmt::print("{:>8} {:>5} | {:>7} {:>7} {:>7} | {:>7} {:>6} | {:>8} {:>6}\n", "kept", "rows", "step", "p10", "p90",
                 "floor", "step /", "all KV", "/ step");
    }
    time_steps(shape, tokens, rows, gpu, next);
    chosen.transport->retire();
  }
  return right;
}

}  // namespace
}  // namespace ringmark

int main(int argc, char** argv) {
  std::vector<std::int64_t> lengths;
  for (int n = 1; n < argc; ++n) lengths.push_back(std::atoll(argv[n]));
  if (lengths.empty()) lengths = {std::int64_t{128} << 10, std::int64_t{1} << 20};
  bool right = false;
  try {
    ringmark::comm::run_thread_ranks(
        1, [&](ringmark::comm::Communicator& ranks) { right = ringmark::run(ranks, lengths); });
  } catch (const ringmark::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
