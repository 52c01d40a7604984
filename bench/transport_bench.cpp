// Latency and bandwidth of a fetch, by transport and size: rank 0 reads blocks of rank 1, which waits in a collective
// as ranks of a job do. usage: mpirun -n 2 transport_bench, or alone for loopback.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <vector>

#include "comm/block_transport.h"
#include "comm/mpi_communicator.h"
#include "comm/mpi_session.h"
#include "comm/thread_ranks.h"
#include "core/error.h"

namespace ringmark {
namespace {

using comm::TransportChoice;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::int64_t kRegion = std::int64_t{64} << 20;  // larger than a cache
constexpr std::size_t kBatch = 16;                        // reads under way at once, for the bandwidth
constexpr std::int64_t kSizes[] = {4 << 10, 32 << 10, 256 << 10, 1 << 20};

std::uint64_t word_at(std::int64_t position) {
  const std::uint64_t mixed = static_cast<std::uint64_t>(position) * 0x9E3779B97F4A7C15u;
  return mixed ^ (mixed >> 29);
}

void fill(comm::Bytes region) {
  const std::span words(reinterpret_cast<std::uint64_t*>(region.data()), region.size() / sizeof(std::uint64_t));
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = word_at(static_cast<std::int64_t>(i));
}

bool holds(comm::ConstBytes block, std::int64_t offset) {
  const std::span words(reinterpret_cast<const std::uint64_t*>(block.data()), block.size() / sizeof(std::uint64_t));
  const std::int64_t first = offset / static_cast<std::int64_t>(sizeof(std::uint64_t));
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != word_at(first + static_cast<std::int64_t>(i))) return false;
  }
  return true;
}

// Reads of blocks at random places of the last rank's region.
class Reader {
 public:
  Reader(comm::BlockTransport& transport, int peer, std::int64_t block)
      : transport_(transport),
        peer_(peer),
        block_(block),
        memory_(kBatch * static_cast<std::size_t>(block) / sizeof(std::uint64_t)) {}

  // Seconds of one batch of so many blocks.
  double read(std::size_t blocks) {
    std::vector<comm::RemoteRead> reads;
    std::uniform_int_distribution<std::int64_t> place(0, kRegion / block_ - 1);
    const comm::Bytes memory = std::as_writable_bytes(std::span(memory_));
    std::ranges::fill(memory, std::byte{0xFF});
    for (std::size_t i = 0; i < blocks; ++i) {
      const auto size = static_cast<std::size_t>(block_);
      reads.push_back({peer_, 0, place(random_) * block_, memory.subspan(i * size, size)});
    }
    const auto begin = Clock::now();
    transport_.get(reads)->wait();
    const Seconds took = Clock::now() - begin;
    for (const comm::RemoteRead& read : reads) correct_ = correct_ && holds(read.destination, read.offset);
    return took.count();
  }
  bool correct() const { return correct_; }

 private:
  comm::BlockTransport& transport_;
  int peer_;
  std::int64_t block_;
  std::vector<std::uint64_t> memory_;
  std::mt19937_64 random_{1};
  bool correct_ = true;
};

double quantile(std::vector<double>& values, double share) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// Prints one line of the table. False when a byte was wrong.
bool measure(comm::BlockTransport& transport, int peer, std::int64_t block) {
  Reader reader(transport, peer, block);
  const int single = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{256} << 20) / block, 200, 2000));
  std::vector<double> one;
  std::vector<double> batch;
  for (int i = 0; i < single / 10; ++i) reader.read(1);
  for (int i = 0; i < single; ++i) one.push_back(reader.read(1));
  for (int i = 0; i < single / 10; ++i) batch.push_back(reader.read(kBatch));
  const double bytes = static_cast<double>(block) * kBatch;
  fmt::print("{:>9} {:>8} {:>9.1f} {:>9.1f} {:>9.2f} {:>9.2f}  {}\n", transport.name(), block >> 10,
             quantile(one, 0.5) * 1e6, quantile(one, 0.99) * 1e6, bytes / quantile(batch, 0.5) / 1e9,
             bytes / quantile(batch, 0.99) / 1e9, reader.correct() ? "correct" : "WRONG");
  std::fflush(stdout);
  return reader.correct();
}

// Collective.
bool run(comm::Communicator& ranks, TransportChoice choice) {
  const comm::ChosenTransport chosen = comm::choose_transport(ranks, choice);
  fill(chosen.transport->expose(kRegion));
  chosen.transport->publish();
  std::int64_t wrong = 0;
  if (ranks.rank() == 0) {
    for (const std::int64_t block : kSizes) wrong += measure(*chosen.transport, ranks.size() - 1, block) ? 0 : 1;
  }
  ranks.barrier("wait for the reader");
  chosen.transport->retire();
  ranks.all_reduce_max("collect the verdicts", std::span(&wrong, 1));
  return wrong == 0;
}

int run_alone() {
  const auto alone = comm::make_single_rank();
  fmt::print("{:>9} {:>8} {:>9} {:>9} {:>9} {:>9}\n", "transport", "KiB", "p50 us", "p99 us", "p50 GB/s", "p99 GB/s");
  return run(*alone, TransportChoice::kAuto) ? EXIT_SUCCESS : EXIT_FAILURE;
}

int run_under_mpi() {
  const comm::MpiSession session;
  try {
    comm::MpiCommunicator ranks;
    bool correct = run(ranks, TransportChoice::kRma) && run(ranks, TransportChoice::kRequest);
#ifdef RINGMARK_HAS_UCX
    correct = correct && run(ranks, TransportChoice::kUcx);
#endif
    return correct ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    comm::MpiSession::abort(static_cast<int>(error.code()));
  }
}

}  // namespace
}  // namespace ringmark

int main() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr ? ringmark::run_alone() : ringmark::run_under_mpi();
}
