// Runs a fetch plan: starts the reads of a wave, and makes its blocks visible in the block table when they have come.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/block_transport.h"
#include "kernels/block_table.h"
#include "runtime/fetch_plan.h"

namespace ringmark::runtime {

class WaveFetcher {
 public:
  // `region` is the transport's number of the block arenas. `arena` takes the received blocks, plan.slots of them:
  // memory of the kind that the transport writes. Plan, arena and table outlive the fetcher.
  WaveFetcher(comm::BlockTransport& transport, int region, const FetchPlan& plan, comm::Bytes arena,
              kernels::BlockTable& table);
  // Received blocks leave the table with their memory.
  ~WaveFetcher();
  WaveFetcher(const WaveFetcher&) = delete;
  WaveFetcher& operator=(const WaveFetcher&) = delete;

  // At most one wave is in flight. Blocks whose slots are reused leave the table here. A wave past the last reads
  // nothing: for transports whose reads are collective.
  void start(std::size_t wave);
  // Throws Error(kPeer) when a peer misses the deadline.
  void wait();

 private:
  std::span<const FetchRun> runs_of(std::size_t wave) const;
  void forget(std::int64_t slot);

  comm::BlockTransport& transport_;
  int region_;
  const FetchPlan& plan_;
  kernels::BlockTable& table_;
  comm::Bytes arena_;
  std::vector<BlockId> resident_;  // by slot; chunk -1 when empty
  std::size_t in_flight_ = 0;
  std::unique_ptr<comm::PendingReads> pending_;
};

}  // namespace ringmark::runtime
