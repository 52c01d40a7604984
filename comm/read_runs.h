// Batches of reads as few runs: reads of one peer that touch on both sides become one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/block_transport.h"

namespace ringmark::comm {

struct ReadRun {
  int region = 0;
  std::int64_t offset = 0;
  Bytes destination;
};

// By peer, in the order of the reads. Empty reads vanish.
std::vector<std::vector<ReadRun>> merge_reads(std::span<const RemoteRead> reads, int ranks);

}  // namespace ringmark::comm
