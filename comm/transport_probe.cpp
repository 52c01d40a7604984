#include "comm/transport_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "core/error.h"

namespace ringmark::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::string_view kStage = "probe a transport";
constexpr std::size_t kSmall = 64;
constexpr std::size_t kLarge = 64 * 1024;
constexpr std::chrono::milliseconds kIdleTime{100};
// A read that ends before its target can have woken up did not need it.
constexpr Seconds kPassive{0.09};
// The scheduler of a crowded host can make any read slow once.
constexpr int kAttempts = 3;

struct Report {
  std::int64_t failed = 0;
  double slowest = 0.0;  // seconds
  std::array<char, 240> words{};

  void fail(const std::string& why) {
    failed = 1;
    words = {};
    std::copy_n(why.data(), std::min(why.size(), words.size() - 1), words.data());
  }
};

std::byte pattern(int rank, std::size_t position) {
  return static_cast<std::byte>(position * 131 + position / 251 + static_cast<std::size_t>(rank) * 29 + 7);
}

// Throws what the transport throws.
Seconds timed_read(BlockTransport& transport, int peer, Report& report) {
  std::vector<std::byte> memory(kSmall + kLarge, std::byte{0xFF});
  const Bytes all(memory);
  const std::array<RemoteRead, 2> reads{{{peer, 0, 0, all.first(kSmall)}, {peer, 0, kSmall, all.subspan(kSmall)}}};
  const auto begin = Clock::now();
  for (const RemoteRead& read : reads) transport.get(std::span(&read, 1))->wait();
  const Seconds took = Clock::now() - begin;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    if (memory[i] == pattern(peer, i)) continue;
    report.fail(fmt::format("wrong content at byte {} read from rank {}", i, peer));
    break;
  }
  return took;
}

void read_from_sleeper(Communicator& communicator, BlockTransport& transport, Report& report) {
  const int peer = (communicator.rank() + 1) % communicator.size();
  try {
    const Seconds took = timed_read(transport, peer, report);
    report.slowest = std::max(report.slowest, took.count());
  } catch (const Error& error) {
    report.fail(error.what());
  }
}

// In every turn the readers' neighbours all sleep: even and odd ranks alternate, and with an odd number of ranks the
// last one, whose neighbour is even as well, has a turn of its own.
int turn_of(int rank, int ranks) { return ranks % 2 == 1 && rank == ranks - 1 ? 2 : rank % 2; }

void attempt(Communicator& communicator, BlockTransport& transport, Report& report) {
  const int turns = communicator.size() % 2 == 0 ? 2 : 3;
  report.slowest = 0.0;
  for (int turn = 0; turn < turns; ++turn) {
    communicator.barrier(kStage);
    if (turn_of(communicator.rank(), communicator.size()) != turn) {
      std::this_thread::sleep_for(kIdleTime);
    } else if (report.failed == 0) {
      read_from_sleeper(communicator, transport, report);
    }
  }
}

std::vector<Report> gather_reports(Communicator& communicator, const Report& mine) {
  std::vector<Report> reports(static_cast<std::size_t>(communicator.size()));
  std::vector<Bytes> all;
  for (Report& report : reports) all.push_back(std::as_writable_bytes(std::span(&report, 1)));
  communicator.all_gather(kStage, std::as_bytes(std::span(&mine, 1)), all);
  return reports;
}

}  // namespace

ProbeResult probe_transport(Communicator& communicator, BlockTransport& transport) {
  const Bytes region = transport.expose(kSmall + kLarge);
  for (std::size_t i = 0; i < region.size(); ++i) region[i] = pattern(communicator.rank(), i);
  transport.publish();
  Report mine;
  double slowest = 0.0;
  for (int tries = 0; tries < kAttempts; ++tries) {
    attempt(communicator, transport, mine);
    const std::vector<Report> reports = gather_reports(communicator, mine);
    const auto failed = std::ranges::find(reports, 1, &Report::failed);
    if (failed != reports.end()) return {false, failed->words.data()};
    slowest = std::ranges::max(reports, {}, &Report::slowest).slowest;
    if (Seconds(slowest) <= kPassive) break;
  }
  transport.retire();
  if (Seconds(slowest) <= kPassive) {
    return {true, fmt::format("64 B and 64 KiB from an idle peer in {:.2f} ms", slowest * 1e3)};
  }
  return {false, fmt::format("a read took {:.0f} ms: it waits for its target to enter MPI", slowest * 1e3)};
}

}  // namespace ringmark::comm
