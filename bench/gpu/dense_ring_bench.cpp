// Exact causal attention of one layer by a ring of GPUs, against one of them with the same keys: our own kernel and
// cuDNN, in the same run. usage: mpirun -n N dense_ring_bench [--share-gpu] [tokens]
//
// Rows of the ring are compared with those of one GPU; a wrong one fails the benchmark.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "bench/gpu/dense_baseline.h"
#include "bench/gpu/planted_device.h"
#include "bench/gpu/ranks.h"
#include "bench/gpu/timing.h"
#include "comm/cuda/choose_device.h"
#include "comm/cuda/choose_device_transport.h"
#include "comm/thread_ranks.h"
#include "runtime/cuda/dense_ring.h"
#include "runtime/dense/prefill.h"
#include "runtime/trace.h"

namespace ringmark::bench {
namespace {

constexpr int kRepeats = 5;
constexpr std::int64_t kSampled = 251;  // rows compared, at even distances
constexpr double kBound = 2e-3;         // of values up to 5: softmax weights in fp16

AttentionProblem problem_of(std::int64_t tokens) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.heads = 32;
  problem.kv_heads = 8;
  problem.head_dim = 128;
  problem.scale = 1.0f / std::sqrt(128.0f);
  problem.validate();
  return problem;
}

double operations(const AttentionProblem& problem) {
  const double n = static_cast<double>(problem.tokens);
  return 4.0 * static_cast<double>(problem.head_dim * problem.heads) * n * (n + 1) / 2;
}

struct RingTimes {
  double attend = 0.0, merge = 0.0, fetch = 0.0, exposed = 0.0, wall = 0.0;  // milliseconds, medians
  std::int64_t bytes = 0;                                                    // received, all ranks
  std::string transport;
  std::vector<float> sampled;  // rows, on rank 0
};

class RingBench {
 public:
  RingBench(const AttentionProblem& problem, comm::Communicator& communicator)
      : problem_(problem),
        communicator_(communicator),
        transport_(comm::cuda::choose_device_transport(communicator, comm::cuda::DeviceTransportChoice::kAuto)),
        grid_(problem, runtime::dense::whole_window(problem)),
        layout_(partition::make_layout(grid_, communicator.size(), partition::Balance::kZigzag)),
        planted_(problem, runtime::dense::whole_window(problem), {}),
        tokens_(layout_.tokens_of(RankId(communicator.rank()))) {}

  // Collective.
  RingTimes run() {
    std::array<std::vector<double>, 5> times;
    for (int repeat = -1; repeat < kRepeats; ++repeat) {  // the first one warms up
      const std::array<double, 5> ms = run_once();
      if (repeat < 0) continue;
      for (std::size_t n = 0; n < ms.size(); ++n) times[n].push_back(ms[n]);
    }
    RingTimes result;
    const auto median = [&](std::size_t n) { return spread_of(times[n]).median; };
    result.attend = median(0);
    result.merge = median(1);
    result.fetch = median(2);
    result.exposed = median(3);
    result.wall = median(4);
    std::array<std::int64_t, 1> bytes = {bytes_};
    communicator_.all_reduce_sum("add up", bytes);
    result.bytes = bytes[0];
    result.transport = transport_.why;
    result.sampled = sample();
    return result;
  }

 private:
  // Of the slowest rank.
  std::array<double, 5> run_once() {
    using ringmark::cuda::Buffer;
    const std::int64_t row_bytes = problem_.head_dim * size_of(problem_.dtype);
    shard_.rows = static_cast<std::int64_t>(tokens_.size());
    if (shard_.q.empty()) shard_.q = Buffer<std::byte>(shard_.rows * problem_.heads * row_bytes);
    shard_.k = Buffer<std::byte>(shard_.rows * problem_.kv_heads * row_bytes);
    shard_.v = Buffer<std::byte>(shard_.rows * problem_.kv_heads * row_bytes);
    planted_.fill(tokens_, shard_.q.data(), shard_.k.data(), shard_.v.data(), workspace_.stream);
    runtime::Trace trace;
    runtime::cuda::DenseRingOptions options;
    options.trace = &trace;
    runtime::SilentProgress progress;
    communicator_.barrier("start of the layer");
    const auto start = std::chrono::steady_clock::now();
    const auto result = runtime::cuda::attend_by_ring(communicator_, *transport_.transport, problem_, grid_, layout_,
                                                      shard_, options, workspace_, progress);
    const double wall = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    bytes_ = result.bytes_received;
    std::array<double, 5> ms = {result.clock.seconds("attend") * 1e3, result.clock.seconds("merge") * 1e3,
                                runtime::uncovered_us(trace, "gpu fetch", "") * 1e-3,
                                runtime::uncovered_us(trace, "gpu fetch", "gpu compute") * 1e-3, wall};
    communicator_.all_reduce_max("the slowest rank", ms);
    return ms;
  }

  // Collective: rows in token order, on rank 0.
  std::vector<float> sample() {
    const std::int64_t width = problem_.heads * problem_.head_dim,
                       distance = std::max<std::int64_t>(1, problem_.tokens / kSampled);
    std::vector<float> own;
    for (std::size_t row = 0; row < tokens_.size(); ++row) {
      if (tokens_[row].value() % distance != 0) continue;
      own.resize(own.size() + static_cast<std::size_t>(width));
      workspace_.out.download(own.data() + own.size() - width, width, workspace_.stream,
                              static_cast<std::int64_t>(row) * width);
      workspace_.stream.wait();
    }
    const auto by_rank = communicator_.gather_bytes("gather rows", std::as_bytes(std::span(own)));
    std::vector<float> rows;
    std::vector<std::size_t> taken(by_rank.size());
    const auto row_bytes = static_cast<std::size_t>(width) * sizeof(float);
    for (TokenId token(0); token < TokenId(problem_.tokens); token = token + distance) {
      const auto owner = static_cast<std::size_t>(layout_.owner(grid_.chunk_of(token)).value());
      rows.resize(rows.size() + static_cast<std::size_t>(width));
      std::memcpy(rows.data() + rows.size() - width, by_rank[owner].data() + taken[owner], row_bytes);
      taken[owner] += row_bytes;
    }
    return rows;
  }

  const AttentionProblem& problem_;
  comm::Communicator& communicator_;
  comm::cuda::ChosenDeviceTransport transport_;
  partition::SequenceGrid grid_;
  partition::Layout layout_;
  PlantedDevice planted_;
  std::vector<TokenId> tokens_;
  runtime::cuda::Workspace workspace_;
  runtime::cuda::DeviceShard shard_;
  std::int64_t bytes_ = 0;
};

// Largest difference; a NaN counts as infinite.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = a.size() == b.size() && !a.empty() ? 0.0 : INFINITY;
  for (std::size_t n = 0; n < std::min(a.size(), b.size()); ++n) {
    const double apart = std::fabs(static_cast<double>(a[n]) - static_cast<double>(b[n]));
    largest = std::max(largest, std::isnan(apart) ? INFINITY : apart);
  }
  return largest;
}

double tflops(double operations, double ms) { return operations / (ms * 1e-3) * 1e-12; }

void print_ring(std::string_view name, const RingTimes& times, double operations) {
  fmt::print(
      "{:<28}{:>10.2f} ms {:>8.1f} TFLOP/s a GPU; attend {:.2f}, merge {:.2f}, fetch {:.2f} ms of which {:.3f} exposed "
      "({:.2f}%), {:.1f} MiB\n",
      name, times.wall, tflops(operations, times.wall), times.attend, times.merge, times.fetch, times.exposed,
      100.0 * times.exposed / times.wall, static_cast<double>(times.bytes) / (1 << 20));
}

bool report(const AttentionProblem& problem, const std::vector<DenseTime>& one_gpu, const RingTimes& alone,
            const RingTimes& ring, int ranks) {
  const double share = operations(problem) / ranks;
  fmt::print("exact causal attention of {} tokens, H={} Hkv={} d={} bf16, zigzag, wall time from rows to rows; {}\n",
             problem.tokens, problem.heads, problem.kv_heads, problem.head_dim, ring.transport);
  for (const DenseTime& time : one_gpu) {
    fmt::print("{:<28}{:>10.2f} ms {:>8.1f} TFLOP/s{}\n", time.name, time.milliseconds,
               tflops(time.flops, time.milliseconds), time.note);
  }
  print_ring("ring of 1 GPU", alone, operations(problem));
  print_ring(fmt::format("ring of {} GPUs", ranks), ring, share);
  for (const DenseTime& time : one_gpu) {
    fmt::print("a GPU of the ring            {:.1f}% of the rate of {}\n",
               100.0 * tflops(share, ring.wall) / tflops(time.flops, time.milliseconds), time.name);
  }
  const double apart = difference(alone.sampled, ring.sampled);
  fmt::print("{} GPUs                       {:.2f} times one; largest difference {:.1e}, {}\n", ranks,
             alone.wall / ring.wall, apart, apart <= kBound ? "right" : "WRONG");
  std::fflush(stdout);
  return apart <= kBound;
}

bool run(comm::Communicator& ranks, std::int64_t tokens, bool share) {
  constexpr std::chrono::minutes kLongest(5);
  const comm::cuda::ChosenDevice device = comm::cuda::choose_device(ranks, share);
  const AttentionProblem problem = problem_of(tokens);
  RingTimes alone;
  std::vector<DenseTime> one_gpu;
  if (ranks.rank() == 0) {
    fmt::print("{}\n", device.why);
    one_gpu = time_dense(problem, kRepeats);
    alone = RingBench(problem, *comm::make_single_rank()).run();
  }
  ranks.barrier("wait for rank 0, which measures one GPU", kLongest);
  const RingTimes ring = RingBench(problem, ranks).run();
  std::array<std::int64_t, 1> wrong = {0};
  if (ranks.rank() == 0) wrong[0] = report(problem, one_gpu, alone, ring, ranks.size()) ? 0 : 1;
  ranks.all_reduce_max("collect the verdict", wrong);
  return wrong[0] == 0;
}

}  // namespace
}  // namespace ringmark::bench

int main(int argc, char** argv) {
  std::int64_t tokens = 131072;
  bool share = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--share-gpu") {
      share = true;
    } else {
      tokens = std::strtoll(argv[i], nullptr, 10);
    }
  }
  return ringmark::bench::run_on_ranks("dense_ring_bench", [&](ringmark::comm::Communicator& ranks) {
    return ringmark::bench::run(ranks, tokens, share);
  });
}
