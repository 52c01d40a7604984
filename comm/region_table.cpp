#include "comm/region_table.h"

#include <fmt/format.h>

#include "core/error.h"

namespace ringmark::comm {

void RegionTable::clear() {
  sizes_.clear();
  published_ = 0;
}

std::int64_t RegionTable::own_bytes() const {
  std::int64_t sum = 0;
  for (const auto& sizes : sizes_) sum += sizes[static_cast<std::size_t>(rank_)];
  return sum;
}

void RegionTable::check(std::span<const RemoteRead> reads) const {
  for (const RemoteRead& read : reads) {
    const auto region = static_cast<std::size_t>(read.region);
    if (read.region < 0 || region >= published_) {
      throw Error(ExitCode::kInternal, fmt::format("internal error: rank {}: read of region {} of rank {}, but {} "
                                                   "regions are published",
                                                   rank_, read.region, read.peer, published_));
    }
    const auto peer = static_cast<std::size_t>(read.peer);
    if (read.peer < 0 || peer >= sizes_[region].size()) {
      throw Error(ExitCode::kInternal, fmt::format("internal error: rank {}: read from rank {} of {} ranks", rank_,
                                                   read.peer, sizes_[region].size()));
    }
    const auto length = static_cast<std::int64_t>(read.destination.size());
    if (!lies_inside(read.offset, length, sizes_[region][peer])) {
      throw Error(ExitCode::kInternal,
                  fmt::format("internal error: rank {}: read of {} bytes at offset {} of region {} of rank {}, which "
                              "has {} bytes",
                              rank_, length, read.offset, read.region, read.peer, sizes_[region][peer]));
    }
  }
}

}  // namespace ringmark::comm
