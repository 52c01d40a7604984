// How fast chosen blocks come out of the memory of other GPUs, by transport and block size, all ranks at once.
// usage: mpirun -n N fetch_bench [--share-gpu] TRANSPORT ...   (cuda-ipc, nccl)
//
// Every rank reads as many bytes as it exposes, from all others in turn, at random offsets; the last line of a
// transport is one read a peer. Every byte is checked; a wrong one fails the benchmark.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "bench/gpu/ranks.h"
#include "bench/gpu/timing.h"
#include "bench/gpu/transfer.h"
#include "comm/cuda/choose_device.h"
#include "comm/cuda/choose_device_transport.h"
#include "core/error.h"

namespace ringmark::bench {
namespace {

using comm::RemoteRead;
using comm::cuda::DeviceTransportChoice;
using Words = std::vector<std::uint64_t>;

constexpr std::int64_t kRegion = std::int64_t{512} << 20;
constexpr std::int64_t kKiB[] = {4, 16, 32, 64, 256, 1024};
constexpr int kRepeats = 7;

std::uint64_t word_of(int rank, std::int64_t index) {
  return (static_cast<std::uint64_t>(rank) << 40 | static_cast<std::uint64_t>(index)) * 0x9E3779B97F4A7C15ull;
}

class FetchBench {
 public:
  FetchBench(comm::Communicator& ranks, DeviceTransportChoice choice)
      : ranks_(ranks), chosen_(comm::cuda::choose_device_transport(ranks, choice)), target_(kRegion) {
    const comm::Bytes region = chosen_.transport->expose(kRegion);
    Words words(kRegion / sizeof(std::uint64_t));
    for (std::size_t n = 0; n < words.size(); ++n) words[n] = word_of(ranks.rank(), static_cast<std::int64_t>(n));
    ringmark::cuda::check(cudaMemcpy(region.data(), words.data(), kRegion, cudaMemcpyHostToDevice), "fill the region");
    chosen_.transport->publish();
  }

  // Collective; false when a byte of some rank is wrong.
  bool run() {
    if (ranks_.rank() == 0) {
      fmt::print("{}\n{:<10}{:>10}{:>12}{:>10}{:>10}{:>10}\n", chosen_.why, "transport", "KiB", "GB/s, GPU", "ms",
                 "min", "ms, wall");
    }
    bool right = true;
    for (const std::int64_t kib : kKiB) right = measure(kib << 10) && right;
    const std::int64_t peers = ranks_.size() - 1;
    right = measure(kRegion / peers / kWord * kWord) && right;
    chosen_.transport->retire();
    return right;
  }

 private:
  static constexpr std::int64_t kWord = sizeof(std::uint64_t);

  // Blocks in random order, the peers in turn.
  std::vector<RemoteRead> plan(std::int64_t block) {
    std::vector<std::int64_t> places(static_cast<std::size_t>(kRegion / block));
    std::iota(places.begin(), places.end(), std::int64_t{0});
    std::shuffle(places.begin(), places.end(), std::mt19937_64(static_cast<std::uint64_t>(ranks_.rank())));
    std::vector<RemoteRead> reads;
    std::byte* place = target_.data();
    for (const std::int64_t from : places) {
      const int turn = static_cast<int>(static_cast<std::int64_t>(reads.size()) % (ranks_.size() - 1));
      reads.push_back({(ranks_.rank() + 1 + turn) % ranks_.size(), 0, from * block, {place, std::size_t(block)}});
      place += block;
    }
    return reads;
  }

  bool measure(std::int64_t block) {
    const std::vector<RemoteRead> reads = plan(block);
    target_.fill_bytes(0, stream_);
    stream_.wait();
    std::vector<double> gpu, wall;
    for (int repeat = -1; repeat < kRepeats; ++repeat) {  // the first one warms up
      std::array<double, 2> ms = time_once(reads);
      ranks_.all_reduce_max("the slowest rank", ms);
      if (repeat < 0) continue;
      gpu.push_back(ms[0]);
      wall.push_back(ms[1]);
    }
    const Spread of_gpu = spread_of(gpu);
    const double bytes = static_cast<double>(reads.size()) * static_cast<double>(block);
    if (ranks_.rank() == 0) {
      fmt::print("{:<10}{:>10}{:>12.1f}{:>10.3f}{:>10.3f}{:>10.3f}\n", chosen_.transport->name(), block >> 10,
                 bytes / (of_gpu.median * 1e-3) * 1e-9, of_gpu.median, of_gpu.low, spread_of(wall).median);
      std::fflush(stdout);
    }
    std::array<std::int64_t, 1> wrong = {check(reads) ? 0 : 1};
    ranks_.all_reduce_max("collect the verdicts", wrong);
    return wrong[0] == 0;
  }

  // Milliseconds on the transport's stream, and until the host knows.
  std::array<double, 2> time_once(const std::vector<RemoteRead>& reads) {
    ringmark::cuda::Event begin, end;
    ranks_.barrier("start of the reads");
    const auto start = std::chrono::steady_clock::now();
    begin.record(chosen_.transport->stream());
    const auto pending = chosen_.transport->get(reads);
    end.record(chosen_.transport->stream());
    pending->wait();
    const double wall = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    end.wait();
    return {double{end.since(begin)}, wall};
  }

  bool check(const std::vector<RemoteRead>& reads) {
    const std::vector<std::byte> got = download(target_, 0, target_.size(), stream_);
    for (const RemoteRead& read : reads) {
      const auto* words =
          reinterpret_cast<const std::uint64_t*>(got.data() + (read.destination.data() - target_.data()));
      for (std::int64_t n = 0; n < static_cast<std::int64_t>(read.destination.size()) / kWord; ++n) {
        if (words[n] == word_of(read.peer, read.offset / kWord + n)) continue;
        fmt::print("WRONG: rank {}, word {} of a block of {} bytes at {} of rank {}\n", ranks_.rank(), n,
                   read.destination.size(), read.offset, read.peer);
        return false;
      }
    }
    return true;
  }

  comm::Communicator& ranks_;
  comm::cuda::ChosenDeviceTransport chosen_;
  ringmark::cuda::Stream stream_;
  ringmark::cuda::Buffer<std::byte> target_;
};

bool run(comm::Communicator& ranks, const std::vector<std::string_view>& arguments) {
  const bool share = std::ranges::count(arguments, "--share-gpu") > 0;
  if (ranks.size() < 2) fail_bad_input("fetch_bench reads from other ranks: mpirun -n 2");
  const comm::cuda::ChosenDevice device = comm::cuda::choose_device(ranks, share);
  if (ranks.rank() == 0) fmt::print("{}\n", device.why);
  bool right = true;
  for (const std::string_view name : arguments) {
    if (name == "--share-gpu") continue;
    if (name != "cuda-ipc" && name != "nccl") fail_bad_input(fmt::format("no transport '{}': cuda-ipc or nccl", name));
    right = FetchBench(ranks, name == "nccl" ? DeviceTransportChoice::kNccl : DeviceTransportChoice::kCudaIpc).run() &&
            right;
  }
  return right;
}

}  // namespace
}  // namespace ringmark::bench

int main(int argc, char** argv) {
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  return ringmark::bench::run_on_ranks(
      "fetch_bench", [&](ringmark::comm::Communicator& ranks) { return ringmark::bench::run(ranks, arguments); });
}
