// Landmark records of the chunks that a wave chose, for runs that keep the landmarks sharded (the `scores` merge): the
// weight of a chosen chunk is its landmark score, so its record travels with its blocks.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/block_transport.h"
#include "core/ids.h"
#include "kernels/attend_chunks.h"
#include "partition/layout.h"

namespace ringmark::runtime {

class LandmarkFetcher {
 public:
  // `records` holds the addresses of the records that are here; waves add the others for as long as they are needed.
  LandmarkFetcher(comm::BlockTransport& transport, int region, const partition::Layout& layout,
                  kernels::LandmarkRecords& records);

  // Starts reading the records of `chunks` (ascending, unique) that are not here.
  void start(std::span<const ChunkId> chunks);
  // Makes them visible and drops those of the wave before.
  void wait();

  std::int64_t bytes() const { return bytes_; }

 private:
  struct Wave {
    std::vector<ChunkId> chunks;
    std::vector<float> records;
  };

  comm::BlockTransport& transport_;
  int region_;
  const partition::Layout& layout_;
  kernels::LandmarkRecords& records_;
  Wave current_;
  Wave next_;
  std::int64_t bytes_ = 0;
  std::unique_ptr<comm::PendingReads> pending_;
};

}  // namespace ringmark::runtime
