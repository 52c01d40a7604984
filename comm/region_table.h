// What every rank has exposed: the sizes that reads are checked against before anything is sent.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/block_transport.h"

namespace ringmark::comm {

// Whether [offset, offset + length) lies inside [0, size). Subtracts, because a sum could wrap.
constexpr bool lies_inside(std::int64_t offset, std::int64_t length, std::int64_t size) {
  return offset >= 0 && length >= 0 && length <= size && offset <= size - length;
}

class RegionTable {
 public:
  explicit RegionTable(int rank) : rank_(rank) {}

  // sizes: of the next region, by rank.
  void add(std::vector<std::int64_t> sizes) { sizes_.push_back(std::move(sizes)); }
  void publish() { published_ = sizes_.size(); }
  // What this rank has exposed in all.
  std::int64_t own_bytes() const;
  void clear();

  // Throws Error(kInternal) naming the read when one names no rank, no published region, or bytes outside of it.
  void check(std::span<const RemoteRead> reads) const;

 private:
  int rank_;
  std::vector<std::vector<std::int64_t>> sizes_;  // by region, by rank
  std::size_t published_ = 0;
};

}  // namespace ringmark::comm
