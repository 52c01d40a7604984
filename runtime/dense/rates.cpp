#include "runtime/dense/rates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <limits>
#include <vector>

namespace ringmark::runtime::dense {
namespace {

constexpr std::size_t kSmall = 64;
constexpr std::size_t kLarge = std::size_t{4} << 20;
constexpr int kRounds = 5;  // the best counts, because a shared host disturbs
// Exact causal attention of one core, docs/performance.md. It only has to place attention beside communication.
constexpr double kFlopsOfThread = 1e11;

double seconds_of_exchange(comm::Communicator& communicator, std::size_t bytes) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const auto next = static_cast<std::size_t>((communicator.rank() + 1) % communicator.size());
  const auto before = static_cast<std::size_t>((communicator.rank() + communicator.size() - 1) % communicator.size());
  const std::vector<std::byte> sent(bytes);
  std::vector<std::byte> received(bytes);
  std::vector<comm::ConstBytes> send(ranks);
  std::vector<comm::Bytes> receive(ranks);
  send[next] = sent;
  receive[before] = received;
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    communicator.barrier("measure links");
    const auto start = std::chrono::steady_clock::now();
    communicator.all_to_all("measure links", send, receive);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

Rates measure_rates(comm::Communicator& communicator, int threads, std::int64_t fetch_budget) {
  Rates rates;
  rates.flops = kFlopsOfThread * threads;
  rates.fetch_budget = fetch_budget;
  if (communicator.size() == 1) return rates;
  std::array<double, 3> slowest = {seconds_of_exchange(communicator, kSmall), seconds_of_exchange(communicator, kLarge),
                                   1.0 / rates.flops};
  communicator.all_reduce_max("measure links", slowest);
  rates.latency = slowest[0];
  rates.bandwidth = static_cast<double>(kLarge) / std::max(slowest[1] - slowest[0], 1e-9);
  rates.flops = 1.0 / slowest[2];
  return rates;
}

}  // namespace ringmark::runtime::dense
