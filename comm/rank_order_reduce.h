// Reductions as an all-gather followed by the same loop on every rank. MPI_Allreduce may combine in another order on
// every rank, which shows in the bits when NaN or signed zeros take part; and the peers of a gather have names when one
// of them is missing. Meant for control values: memory is ranks x values.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"

namespace ringmark::comm {

template <class T, class Combine>
void all_reduce_in_rank_order(Communicator& communicator, std::string_view stage, std::span<T> values,
                              Combine combine) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<T> gathered(ranks * values.size());
  std::vector<Bytes> rows;
  for (std::size_t r = 0; r < ranks; ++r) {
    rows.push_back(std::as_writable_bytes(std::span(gathered).subspan(r * values.size(), values.size())));
  }
  communicator.all_gather(stage, std::as_bytes(values), rows);
  for (std::size_t i = 0; i < values.size(); ++i) {
    T result = gathered[i];
    for (std::size_t r = 1; r < ranks; ++r) result = combine(result, gathered[r * values.size() + i]);
    values[i] = result;
  }
}

// Wraps instead of being undefined.
inline std::int64_t sum_of(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

// A NaN on any rank is the result.
template <class T>
T max_of(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(b)) return b;
  }
  return a < b ? b : a;
}

}  // namespace ringmark::comm
