// Rows that are spread over ranks, in token order on every one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "partition/layout.h"

namespace ringmark::test {

// Every rank's rows of `width` elements, in token order.
template <class T>
std::vector<T> gather(comm::Communicator& communicator, const partition::Layout& layout, std::int64_t tokens,
                      std::int64_t width, const std::vector<T>& own) {
  std::vector<std::vector<T>> shards;
  std::vector<comm::Bytes> all;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    shards.emplace_back(static_cast<std::size_t>(layout.token_count(RankId(rank)) * width));
  }
  for (auto& shard : shards) all.push_back(std::as_writable_bytes(std::span(shard)));
  communicator.all_gather("gather results", std::as_bytes(std::span(own)), all);
  std::vector<T> sequence(static_cast<std::size_t>(tokens * width));
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    auto next = shards[static_cast<std::size_t>(rank)].begin();
    for (const Range<TokenId>& run : layout.token_runs(RankId(rank))) {
      std::copy(next, next + run.size() * width, sequence.begin() + run.begin.value() * width);
      next += run.size() * width;
    }
  }
  return sequence;
}

}  // namespace ringmark::test
