// A transport that fails on purpose, for tests: it passes every call on to another one and spoils the reads that its
// script names. What must be noticed (a flipped bit, the bytes of another place) and what must change nothing (another
// order, a read done twice) is for the tests to tell apart.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "comm/block_transport.h"

namespace ringmark::comm {

enum class FaultKind {
  kDelay,        // wait() takes `delay` longer
  kDrop,         // never completes: wait() ends at the timeout with Error(kPeer); nothing is written
  kError,        // wait() throws Error(kPeer) at once; destinations hold anything
  kFlipBit,      // one bit of one destination is inverted
  kOtherOffset,  // one read brings the bytes of another place of its region, as many bytes away as it is long
  kTruncate,     // one destination gets its first half alone
  kSwap,         // two destinations of one size have each other's bytes
  kReorder,      // the reads of the batch start in another order
  kDuplicate,    // one read is done twice
  kKill,         // this process ends by SIGKILL when get() is called
  kStop,         // this process stops by SIGSTOP when get() is called
};

struct Fault {
  FaultKind kind = FaultKind::kDelay;
  std::int64_t at = 0;     // call of get() on this rank, from 0; calls without reads count
  std::int64_t times = 1;  // this call and the next ones
  std::chrono::duration<double> delay{};
};

struct FaultScript {
  std::vector<Fault> faults;
  std::uint64_t seed = 1;  // which read, bit and order
};

class FaultyTransport final : public BlockTransport {
 public:
  // The other transport and the communicator live longer than this. A rank with an empty script is honest.
  FaultyTransport(Communicator& communicator, BlockTransport& inner, FaultScript script);

  std::string_view name() const override { return inner_.name(); }
  Bytes expose(std::int64_t bytes) override;
  void publish() override { inner_.publish(); }
  std::unique_ptr<PendingReads> get(std::span<const RemoteRead> reads) override;
  void retire() override;

  // Faults that found a read they could spoil. A test that counts on a fault makes sure that it happened.
  std::int64_t injected() const { return injected_; }

 private:
  class Pending;

  // Whether there was something to spoil.
  bool spoil(const Fault& fault, std::vector<RemoteRead>& reads, Pending& pending);
  bool choose_other_offset(RemoteRead& read) const;
  bool swap_two(std::span<const RemoteRead> reads, Pending& pending);
  std::size_t any(std::size_t count);

  Communicator& communicator_;
  BlockTransport& inner_;
  FaultScript script_;
  std::mt19937_64 random_;
  std::vector<std::vector<std::int64_t>> sizes_;  // by region, by rank
  std::int64_t calls_ = 0;
  std::int64_t injected_ = 0;
};

}  // namespace ringmark::comm
