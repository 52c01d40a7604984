// One-sided reads of memory that peers have exposed: how chosen blocks move. The transport knows regions, offsets and
// bytes, never chunks.
//
//     auto arena = transport.expose(bytes);       // Collective; fill it
//     transport.publish();                        // Collective: peers may read what was written so far
//     auto pending = transport.get(reads);        // returns at once where the mechanism allows
//     ... work ...
//     pending->wait();                            // destinations are valid after this, not before
//     ... write more; transport.publish(); ...    // as often as contents grow or change
//     transport.retire();                         // Collective: nobody reads any more, arenas are freed
//
// Four implementations for host memory: loopback (same address space: one rank, or ranks as threads), rma (MPI windows,
// passive target), request (request and reply, answered by a thread of the owner) and ucx (one-sided reads by UCX,
// where the build has it). For GPU memory: comm/cuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "comm/spill_arena.h"

namespace ringmark::comm {

// A region is named by the order in which it was exposed: 0, 1, ... the same on every rank.
struct RemoteRead {
  int peer = 0;
  int region = 0;
  std::int64_t offset = 0;  // bytes from the start of the peer's region
  Bytes destination;        // belongs to the transport until wait() returns
};

// A started batch. Destroying it without wait() waits, so that no late write can hit reused memory.
class PendingReads {
 public:
  virtual ~PendingReads() = default;
  // Throws Error(kPeer) with rank and peer when the deadline passes; then no destination is valid.
  virtual void wait() = 0;
};

class BlockTransport {
 public:
  virtual ~BlockTransport() = default;
  virtual std::string_view name() const = 0;

  // Collective: memory of this rank that peers may read after publish(). Ranks may ask for different sizes, also zero.
  // 64-byte aligned. Error(kEnvironment) with the number of bytes when it cannot be had.
  virtual Bytes expose(std::int64_t bytes) = 0;
  // Collective fence: what a rank wrote to its regions before it is what peers read after it. Bytes that a peer may be
  // reading are not written: a fence lies between its last read of the old ones and the first write of the new.
  virtual void publish() = 0;
  // Reads must lie inside the peer's region: Error(kInternal) otherwise, before anything is sent. peer may be this
  // rank.
  virtual std::unique_ptr<PendingReads> get(std::span<const RemoteRead> reads) = 0;
  // Collective.
  virtual void retire() = 0;
};

enum class TransportChoice { kAuto, kRma, kRequest, kUcx };

struct ChosenTransport {
  std::unique_ptr<BlockTransport> transport;
  std::string why;  // one line: what was chosen and the reason
};

// Collective. kAuto: loopback for one rank; otherwise rma if a functional probe passes (64 B and 64 KiB read with
// content checked while the target idles, within 2 s) and the host's shared memory holds what will be exposed, and
// request if not. A forced choice that fails its probe throws
// Error(kEnvironment) with the reason and never falls back.
// kAuto leaves ucx alone: over TCP, where rma fails, its reads wait for a thread of the owner just as those of request.
//
// region_bytes  what this rank will expose in all, as far as it is known
// spill         keeps what is over its memory in a file: all but rma can; Error(kBadInput) for rma
ChosenTransport choose_transport(Communicator& communicator, TransportChoice choice, std::int64_t region_bytes = 0,
                                 const std::optional<SpillPolicy>& spill = std::nullopt);

}  // namespace ringmark::comm
