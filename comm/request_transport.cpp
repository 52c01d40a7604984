#include "comm/request_transport.h"

#include <fmt/format.h>

#include "comm/copy_bytes.h"
#include "comm/peer_requests.h"
#include "core/error.h"

namespace ringmark::comm {
namespace {

// A reply slice whose destination is not one piece of memory arrives here first.
struct StagedSlice {
  std::unique_ptr<std::byte[]> memory;
  std::vector<Bytes> pieces;
};

class PendingReplies final : public PendingReads {
 public:
  PendingReplies(int rank, std::chrono::duration<double> timeout, std::shared_ptr<OwnedComm> wire)
      : timeout_(timeout), wire_(std::move(wire)), memory_(std::make_unique<Memory>()), requests_(rank) {}

  ~PendingReplies() override {
    if (requests_.empty()) return;
    try {
      wait();
    } catch (const Error&) {
      // Nobody is left to tell: the destinations are not used by a caller who never called wait().
    }
  }

  // Receives are posted before the request leaves: replies never wait for a buffer.
  void ask(int peer, std::uint64_t sequence, std::span<const ReadRun> runs) {
    std::vector<Bytes> destinations;
    for (const ReadRun& run : runs) destinations.push_back(run.destination);
    auto slices = cut_into_slices<Bytes>(destinations, kReplyRule);
    const int tag = reply_tag(sequence);
    for (auto& slice : slices) {
      if (slice.pieces.size() == 1) {
        requests_.receive(wire_->get(), peer, tag, slice.pieces[0]);
        continue;
      }
      StagedSlice& staged = memory_->staged.emplace_back();
      staged.memory = std::make_unique_for_overwrite<std::byte[]>(slice.bytes);
      staged.pieces = std::move(slice.pieces);
      requests_.receive(wire_->get(), peer, tag, Bytes(staged.memory.get(), slice.bytes));
    }
    memory_->messages.push_back(encode_request(sequence, runs, slices.size()));
    requests_.send(wire_->get(), peer, kRequestTag, memory_->messages.back());
  }

  void wait() override {
    if (requests_.empty()) return;
    try {
      requests_.wait("block reads", timeout_);
    } catch (const Error&) {
      wire_->abandon();
      // MPI may still write to a slice whose transfer was under way: better lost than reused.
      (void)memory_.release();
      throw;
    }
    for (const StagedSlice& staged : memory_->staged) {
      const std::byte* from = staged.memory.get();
      for (const Bytes piece : staged.pieces) {
        copy_bytes(ConstBytes(from, piece.size()), piece);
        from += piece.size();
      }
    }
    memory_.reset();
  }

 private:
  struct Memory {
    std::vector<StagedSlice> staged;
    std::vector<std::vector<std::byte>> messages;
  };

  std::chrono::duration<double> timeout_;
  std::shared_ptr<OwnedComm> wire_;
  std::unique_ptr<Memory> memory_;
  PeerRequests requests_;
};

std::shared_ptr<OwnedComm> open_wire(MpiCommunicator& communicator) {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  std::int64_t lacking = level < MPI_THREAD_MULTIPLE ? 1 : 0;
  communicator.all_reduce_max("open the request transport", std::span(&lacking, 1));
  if (lacking != 0) {
    fail_environment(
        fmt::format("the request transport needs MPI_THREAD_MULTIPLE (level {}) on every rank; rank {} has level {}",
                    static_cast<int>(MPI_THREAD_MULTIPLE), communicator.rank(), level));
  }
  return communicator.duplicate("open the request transport");
}

}  // namespace

RequestTransport::RequestTransport(MpiCommunicator& communicator, std::chrono::duration<double> read_timeout,
                                   std::optional<SpillPolicy> spill)
    : communicator_(communicator),
      read_timeout_(read_timeout),
      spill_(std::move(spill)),
      wire_(open_wire(communicator)),
      table_(communicator.rank()),
      server_(wire_) {}

Bytes RequestTransport::expose(std::int64_t bytes) {
  AgreedArena agreed = allocate_on_all_ranks(communicator_, bytes, spill_, table_.own_bytes());
  arenas_.push_back(agreed.arena);
  table_.add(std::move(agreed.sizes));
  return agreed.arena->bytes();
}

void RequestTransport::publish() {
  server_.check_running();
  server_.serve(std::make_shared<const RequestServer::Regions>(arenas_));
  communicator_.barrier("publish regions");
  table_.publish();
}

std::unique_ptr<PendingReads> RequestTransport::get(std::span<const RemoteRead> reads) {
  server_.check_running();
  table_.check(reads);
  const auto runs_of = merge_reads(reads, communicator_.size());
  auto pending = std::make_unique<PendingReplies>(communicator_.rank(), read_timeout_, wire_);
  for (int step = 1; step < communicator_.size(); ++step) {
    const int peer = (communicator_.rank() + step) % communicator_.size();
    std::span<const ReadRun> runs = runs_of[static_cast<std::size_t>(peer)];
    while (!runs.empty()) {
      const auto asked = runs.first(std::min(runs.size(), kRunsPerRequest));
      pending->ask(peer, sequence_++, asked);
      runs = runs.subspan(asked.size());
    }
  }
  copy_own(runs_of[static_cast<std::size_t>(communicator_.rank())]);
  return pending;
}

void RequestTransport::copy_own(std::span<const ReadRun> runs) const {
  for (const ReadRun& run : runs) {
    const ConstBytes region = arenas_[static_cast<std::size_t>(run.region)]->bytes();
    copy_bytes(region.subspan(static_cast<std::size_t>(run.offset), run.destination.size()), run.destination);
  }
}

void RequestTransport::retire() {
  communicator_.barrier("retire regions");
  server_.check_running();
  server_.serve(nullptr);
  table_.clear();
  arenas_.clear();
}

}  // namespace ringmark::comm
