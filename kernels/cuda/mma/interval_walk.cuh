// Walks what a tile needs, which is a union of one or two intervals a query, in ascending order: sinks and window
// chunks, or landmarks. Rows of any layout may share a tile, so nothing between two intervals is touched.
#pragma once

#include <climits>

#include "kernels/cuda/mma/instructions.cuh"

namespace ringmark::kernels::cuda::mma {

struct Interval {
  int begin = 0;
  int end = 0;
};

// The first stretch of the union of intervals interval_of(n), n < count, at or after `from`: it begins at the smallest
// such position and ends where the longest interval around that position does. Empty when there is none. All lanes of
// a warp take part and receive the same.
template <class IntervalOf>
__device__ inline Interval next_stretch(int from, int count, const IntervalOf& interval_of) {
  int begin = INT_MAX;
  for (int n = lane_id(); n < count; n += 32) {
    const Interval interval = interval_of(n);
    if (interval.end > interval.begin && interval.end > from) begin = min(begin, max(interval.begin, from));
  }
  begin = __reduce_min_sync(kAllLanes, begin);
  if (begin == INT_MAX) return {};
  int end = begin;
  for (int n = lane_id(); n < count; n += 32) {
    const Interval interval = interval_of(n);
    if (interval.begin <= begin) end = max(end, interval.end);
  }
  return {begin, __reduce_max_sync(kAllLanes, end)};
}

}  // namespace ringmark::kernels::cuda::mma
