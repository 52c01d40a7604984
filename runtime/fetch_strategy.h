// How chosen blocks come to a rank: one by one, or, where the union of all choices nears everything, by streaming whole
// shards round the ring, which needs no lists and runs at the full rate of the link.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ringmark::runtime {

enum class Fetch {
  kAuto,    // the cost model decides
  kBlocks,  // only the blocks that were chosen
  kStream,  // every remote shard, whole, the next rank's first
};

constexpr std::string_view name_of(Fetch fetch) {
  switch (fetch) {
    case Fetch::kAuto: return "auto";
    case Fetch::kBlocks: return "blocks";
    case Fetch::kStream: return "stream";
  }
  return "?";
}

// Rates of a link for scattered blocks and for whole shards, bytes a second. Defaults: an NVLink pair of H200s,
// measured (docs/performance.md).
struct LinkRates {
  double scattered = 336e9;
  double streamed = 374e9;
};

struct FetchDecision {
  Fetch fetch = Fetch::kBlocks;
  std::int64_t chosen_bytes = 0;  // remote blocks that this rank chose, each once
  std::int64_t remote_bytes = 0;  // all remote blocks
  double blocks_seconds = 0.0;    // predicted
  double stream_seconds = 0.0;
  std::string why;  // one line
};

// Streaming needs room for everything: without it (`budget`) blocks are fetched.
FetchDecision choose_fetch(Fetch asked, std::int64_t chosen_bytes, std::int64_t remote_bytes, std::int64_t budget,
                           const LinkRates& rates = {});

}  // namespace ringmark::runtime
