#include "runtime/exchange_costs.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <limits>
#include <vector>

namespace ringmark::runtime {
namespace {

// So many at once, as in a step; the best of some rounds, because a shared host disturbs.
constexpr std::int64_t kAtOnce = 8;
constexpr int kRounds = 5;

template <class Work>
double best_seconds(Work work) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

double seconds_of_a_pull(comm::BlockTransport& transport, const KeptLayer& layer, int peer) {
  const std::int64_t block = layer.parcel().block_bytes();
  const auto chunks = static_cast<std::int64_t>(layer.layout().chunks_of(RankId(peer)).size());
  const std::int64_t count = std::min(kAtOnce, chunks * layer.problem().kv_heads);
  if (count == 0) return 0.0;
  std::vector<std::byte> memory(static_cast<std::size_t>(count * block));
  std::vector<comm::RemoteRead> reads;
  for (std::int64_t n = 0; n < count; ++n) {
    // Backwards: blocks of a step are scattered, runs would be joined into one read.
    const std::int64_t offset = (count - 1 - n) * block;
    reads.push_back(
        {peer, KeptLayer::kBlockRegion, offset,
         comm::Bytes(memory).subspan(static_cast<std::size_t>(n * block), static_cast<std::size_t>(block))});
  }
  return best_seconds([&] { transport.get(reads)->wait(); }) / static_cast<double>(count);
}

double seconds_of_a_push(comm::Communicator& communicator, const KeptLayer& layer) {
  const std::int64_t partial = layer.problem().group() * (layer.problem().head_dim + 1);
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const auto floats = static_cast<std::size_t>(kAtOnce * partial);
  const std::vector<float> sent(floats);
  std::vector<std::vector<float>> received(ranks, std::vector<float>(floats));
  const std::vector<comm::ConstBytes> send(ranks, std::as_bytes(std::span(sent)));
  std::vector<comm::Bytes> receive;
  for (auto& part : received) receive.push_back(std::as_writable_bytes(std::span(part)));
  const double all = best_seconds([&] { communicator.all_to_all("measure a push", send, receive); });
  return all / static_cast<double>(kAtOnce * (communicator.size() - 1));
}

}  // namespace

ExchangeCosts measure_exchange_costs(comm::Communicator& communicator, comm::BlockTransport& transport,
                                     const KeptLayer& layer) {
  if (communicator.size() == 1) return {};
  const int peer = (communicator.rank() + 1) % communicator.size();
  std::array<double, 2> slowest = {seconds_of_a_pull(transport, layer, peer), seconds_of_a_push(communicator, layer)};
  communicator.all_reduce_max("measure pulls and pushes", slowest);
  return {slowest[0], slowest[1]};
}

}  // namespace ringmark::runtime
