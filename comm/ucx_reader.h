// The reading side of UCX: one worker, an endpoint for every peer, and batches of reads that are under way.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "comm/block_transport.h"
#include "comm/ucx_context.h"

namespace ringmark::comm {

class UcxReader {
 public:
  // Throws Error(kEnvironment). The context lives longer than this.
  UcxReader(ucp_context_h context, int rank, int ranks);
  // Leaves the worker to the end of the process after a failure: reads of it may still be under way.
  ~UcxReader();
  UcxReader(const UcxReader&) = delete;
  UcxReader& operator=(const UcxReader&) = delete;

  // Where the library can, the loss of a peer on another host ends the reads from it at once. On one host it cannot:
  // such an endpoint would do without shared memory.
  void connect(int peer, ConstBytes address, bool same_host);
  ucp_ep_h endpoint(int peer) const { return endpoints_[static_cast<std::size_t>(peer)]; }

  // What a peer still owes to a batch.
  struct Owed {
    int reads = 0;
    ucs_status_t failure = UCS_OK;
  };
  struct Piece {
    int peer;
    std::uint64_t address;
    ucp_rkey_h key;
    Bytes destination;
  };
  // Starts reads; `owed` has an entry for every rank and stays where it is until none owes anything.
  void start(std::span<const Piece> pieces, std::vector<Owed>& owed);
  // Returns whether anything moved. Throws Error(kPeer) naming the peer when a read of the batch failed.
  bool progress(const std::vector<Owed>& owed);
  // Peers that still owe reads.
  std::vector<int> late_peers(const std::vector<Owed>& owed);
  // After this nothing of the worker is freed.
  void abandon();
  bool abandoned() const;
  int rank() const { return rank_; }

 private:
  int rank_;
  mutable std::mutex mutex_;  // guards the worker and what its callbacks write
  bool abandoned_ = false;
  UcxWorker worker_;
  std::vector<ucp_ep_h> endpoints_;  // by rank; null for this one; they end with the worker
};

}  // namespace ringmark::comm
