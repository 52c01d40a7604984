#include "bench/gpu/gather_times.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "bench/gpu/roofline.h"
#include "bench/gpu/transfer.h"
#include "comm/cuda/gather_reads.h"

namespace ringmark::bench {
namespace {

using comm::cuda::Copy;
using comm::cuda::Reach;
using ringmark::cuda::Buffer;

class GatherBench {
 public:
  // The bytes come from `source`, which the current GPU can read.
  GatherBench(int source, std::int64_t bytes, int repeats) : repeats_(repeats), host_(static_cast<std::size_t>(bytes)) {
    int here = 0;
    ringmark::cuda::check(cudaGetDevice(&here), "ask for the current GPU");
    reach_ = source == here ? Reach::kOwnMemory : Reach::kPeers;
    std::mt19937_64 random(1);
    for (std::size_t at = 0; at < host_.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(host_.data() + at, &word, sizeof(word));
    }
    ringmark::cuda::check(cudaSetDevice(source), "go to the GPU of the blocks");
    source_ = Buffer<std::byte>(bytes);
    ringmark::cuda::check(cudaMemcpy(source_.data(), host_.data(), host_.size(), cudaMemcpyHostToDevice),
                          "fill the blocks");
    ringmark::cuda::check(cudaSetDevice(here), "come back");
    target_ = Buffer<std::byte>(bytes);
  }

  KernelTime time_copy() {
    order_ = {0};
    block_ = source_.bytes();
    return time("copy engine", [&] {
      ringmark::cuda::check(cudaMemcpyAsync(target_.data(), source_.data(), host_.size(), cudaMemcpyDefault, stream_),
                            "copy the blocks");
    });
  }

  // From here on: blocks of this size, in random order.
  void shuffle(std::int64_t block) {
    block_ = block;
    order_.resize(static_cast<std::size_t>(source_.bytes() / block));
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
    std::shuffle(order_.begin(), order_.end(), std::mt19937_64(2));
  }

  // In pieces, as the transport cuts them.
  KernelTime time_gather() {
    std::vector<Copy> pieces;
    for (std::size_t n = 0; n < order_.size(); ++n) {
      for (std::int64_t at = 0; at < block_; at += comm::cuda::kCopyPerWarp) {
        pieces.push_back({source_.data() + order_[n] * block_ + at,
                          target_.data() + static_cast<std::int64_t>(n) * block_ + at,
                          std::min(comm::cuda::kCopyPerWarp, block_ - at)});
      }
    }
    const auto copies = upload(pieces, stream_);
    return time("gather", [&] { comm::cuda::gather_reads(copies.data(), copies.size(), reach_, stream_); });
  }

 private:
  KernelTime time(const char* family, const std::function<void()>& work) {
    target_.fill_bytes(0, stream_);
    KernelTime result;
    result.kernel = reach_ == Reach::kPeers ? "from a peer" : "own memory";
    result.family = family;
    result.input = block_ == source_.bytes() ? fmt::format("{} MiB at once", block_ >> 20)
                                             : fmt::format("blocks of {} KiB", block_ >> 10);
    result.ms = time_on(stream_, repeats_, work);
    result.work = static_cast<double>(source_.bytes());
    result.ceiling = reach_ == Reach::kPeers ? 0.0 : kCopyRate / 2;  // a byte is read and written
    result.moves_bytes = true;
    const auto got = download(target_, 0, target_.size(), stream_);
    for (std::size_t n = 0; n < order_.size() && result.wrong.empty(); ++n) {
      const auto size = static_cast<std::size_t>(block_);
      if (std::memcmp(got.data() + n * size, host_.data() + static_cast<std::size_t>(order_[n]) * size, size) != 0) {
        result.wrong = fmt::format("block {}", n);
      }
    }
    return result;
  }

  int repeats_;
  Reach reach_;
  std::vector<std::byte> host_;
  ringmark::cuda::Stream stream_;
  Buffer<std::byte> source_, target_;
  std::int64_t block_ = 0;
  std::vector<std::int64_t> order_;  // the block that comes to each place
};

// The next GPU, if this one can read its memory; -1 if not.
int readable_peer(int here) {
  int count = 0, can = 0;
  ringmark::cuda::check(cudaGetDeviceCount(&count), "count the GPUs");
  if (count < 2) return -1;
  const int peer = (here + 1) % count;
  ringmark::cuda::check(cudaDeviceCanAccessPeer(&can, here, peer), "ask for peer access");
  if (can == 0) return -1;
  ringmark::cuda::check(cudaDeviceEnablePeerAccess(peer, 0), "get access to the peer");
  return peer;
}

}  // namespace

void time_gathers(const KernelOptions& options, KernelTable& table) {
  int here = 0;
  ringmark::cuda::check(cudaGetDevice(&here), "ask for the current GPU");
  const std::int64_t bytes = std::int64_t{options.quick ? 32 : 512} << 20;
  for (const int source : {here, readable_peer(here)}) {
    if (source < 0) continue;
    GatherBench bench(source, bytes, options.repeats);
    table.add(bench.time_copy());
    for (const std::int64_t kib : {4, 16, 32, 64, 256, 1024}) {
      bench.shuffle(kib << 10);
      table.add(bench.time_gather());
    }
  }
}

}  // namespace ringmark::bench
