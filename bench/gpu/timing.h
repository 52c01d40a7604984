// Times of one kind of work by the GPU's own clock, and what a table says of them.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "core/cuda/stream.h"

namespace ringmark::bench {

struct Spread {
  double median = 0.0, low = 0.0, high = 0.0;
};

inline Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

// Milliseconds from before to after what `work` enqueues on the stream, each repeat by itself, after one to warm up.
inline Spread time_on(cudaStream_t stream, int repeats, const std::function<void()>& work) {
  work();
  std::vector<double> times;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    ringmark::cuda::Event begin, end;
    begin.record(stream);
    work();
    end.record(stream);
    end.wait();
    times.push_back(double{end.since(begin)});
  }
  return spread_of(times);
}

}  // namespace ringmark::bench
