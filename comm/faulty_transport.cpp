#include "comm/faulty_transport.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "comm/peer_failure.h"
#include "core/error.h"

namespace ringmark::comm {
namespace {

constexpr std::string_view kReading = "block reads";

// A read that can be spoiled has bytes.
std::vector<std::size_t> reads_with_bytes(std::span<const RemoteRead> reads) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (!reads[i].destination.empty()) found.push_back(i);
  }
  return found;
}

std::vector<int> peers_of(std::span<const RemoteRead> reads) {
  std::set<int> peers;
  for (const RemoteRead& read : reads) peers.insert(read.peer);
  return {peers.begin(), peers.end()};
}

}  // namespace

// One batch: what its faults do after the reads of the other transport.
class FaultyTransport::Pending final : public PendingReads {
 public:
  Pending(int rank, std::chrono::duration<double> timeout) : rank_(rank), timeout_(timeout) {}
  ~Pending() override {
    if (done_ || inner_ == nullptr) return;
    try {
      wait();
    } catch (const Error&) {
      // As with every transport: nobody is left to tell.
    }
  }

  void start(std::unique_ptr<PendingReads> inner) { inner_ = std::move(inner); }
  void delay(std::chrono::duration<double> delay) { delay_ += delay; }
  void drop(std::vector<int> peers) { dropped_ = std::move(peers); }
  void fail(int peer) { failing_peer_ = peer; }
  void flip(std::byte& byte, int bit) { flips_.push_back({&byte, std::byte{1} << bit}); }
  void swap(Bytes a, Bytes b) { swaps_.push_back({a, b}); }

  void wait() override {
    if (std::exchange(done_, true)) return;
    inner_->wait();
    std::this_thread::sleep_for(delay_);
    if (!dropped_.empty()) {
      std::this_thread::sleep_for(timeout_);
      fail_peer(waited_text(rank_, kReading, timeout_, dropped_));
    }
    if (failing_peer_ >= 0) {
      fail_peer(
          fmt::format("rank {}: stage '{}': read from rank {} failed: injected fault", rank_, kReading, failing_peer_));
    }
    for (const auto& [byte, mask] : flips_) *byte ^= mask;
    for (const auto& [a, b] : swaps_) std::swap_ranges(a.begin(), a.end(), b.begin());
  }

 private:
  int rank_;
  std::chrono::duration<double> timeout_;
  std::unique_ptr<PendingReads> inner_;
  std::chrono::duration<double> delay_{};
  std::vector<int> dropped_;
  int failing_peer_ = -1;
  std::vector<std::pair<std::byte*, std::byte>> flips_;
  std::vector<std::pair<Bytes, Bytes>> swaps_;
  bool done_ = false;
};

FaultyTransport::FaultyTransport(Communicator& communicator, BlockTransport& inner, FaultScript script)
    : communicator_(communicator), inner_(inner), script_(std::move(script)), random_(script_.seed) {}

Bytes FaultyTransport::expose(std::int64_t bytes) {
  const Bytes memory = inner_.expose(bytes);
  sizes_.push_back(communicator_.gather_sizes("expose a region", bytes));
  return memory;
}

void FaultyTransport::retire() {
  inner_.retire();
  sizes_.clear();
}

std::size_t FaultyTransport::any(std::size_t count) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_);
}

std::unique_ptr<PendingReads> FaultyTransport::get(std::span<const RemoteRead> reads) {
  const std::int64_t call = calls_++;
  std::vector<RemoteRead> passed_on(reads.begin(), reads.end());
  auto pending = std::make_unique<Pending>(communicator_.rank(), communicator_.timeout());
  for (const Fault& fault : script_.faults) {
    if (call < fault.at || call >= fault.at + fault.times) continue;
    if (spoil(fault, passed_on, *pending)) ++injected_;
  }
  pending->start(inner_.get(passed_on));
  return pending;
}

bool FaultyTransport::spoil(const Fault& fault, std::vector<RemoteRead>& reads, Pending& pending) {
  switch (fault.kind) {
    case FaultKind::kKill: return raise(SIGKILL) == 0;
    case FaultKind::kStop: return raise(SIGSTOP) == 0;
    case FaultKind::kDelay: pending.delay(fault.delay); return true;
    case FaultKind::kSwap: return swap_two(reads, pending);
    case FaultKind::kReorder: std::ranges::shuffle(reads, random_); return reads.size() > 1;
    default: break;
  }
  const std::vector<std::size_t> spoilable = reads_with_bytes(reads);
  if (spoilable.empty()) return false;
  RemoteRead& read = reads[spoilable[any(spoilable.size())]];
  switch (fault.kind) {
    case FaultKind::kDrop:
      pending.drop(peers_of(reads));
      reads.clear();
      return true;
    case FaultKind::kError: pending.fail(read.peer); return true;
    case FaultKind::kFlipBit:
      pending.flip(read.destination[any(read.destination.size())], static_cast<int>(any(8)));
      return true;
    case FaultKind::kOtherOffset: return choose_other_offset(read);
    case FaultKind::kTruncate: read.destination = read.destination.first(read.destination.size() / 2); return true;
    default: reads.insert(reads.end(), read); return true;
  }
}

bool FaultyTransport::choose_other_offset(RemoteRead& read) const {
  const auto length = static_cast<std::int64_t>(read.destination.size());
  const std::int64_t size = sizes_[static_cast<std::size_t>(read.region)][static_cast<std::size_t>(read.peer)];
  if (read.offset >= length) {
    read.offset -= length;
  } else if (read.offset + 2 * length <= size) {
    read.offset += length;
  } else {
    return false;
  }
  return true;
}

bool FaultyTransport::swap_two(std::span<const RemoteRead> reads, Pending& pending) {
  const std::vector<std::size_t> spoilable = reads_with_bytes(reads);
  if (spoilable.empty()) return false;
  const Bytes one = reads[spoilable[any(spoilable.size())]].destination;
  for (const std::size_t i : spoilable) {
    const Bytes other = reads[i].destination;
    if (other.data() == one.data() || other.size() != one.size()) continue;
    pending.swap(one, other);
    return true;
  }
  return false;
}

}  // namespace ringmark::comm
