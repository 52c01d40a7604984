#include "runtime/cuda/timeline.h"

#include <nvtx3/nvToolsExt.h>

namespace ringmark::runtime::cuda {

Timeline::Timeline(cudaStream_t stream, std::string_view lane) : stream_(stream), lane_(lane) {
  origin_.record(stream);
  origin_.wait();
  origin_us_ = Trace::now_us();
}

Timeline::Span::Span(Timeline& timeline, std::string_view stage) : timeline_(timeline), index_(timeline.timed_.size()) {
  timeline.timed_.push_back({std::string(stage), {}, {}});
  timeline.timed_.back().begin.record(timeline.stream_);
  nvtxRangePushA(timeline.timed_.back().stage.c_str());
}

Timeline::Span::~Span() {
  nvtxRangePop();
  // A failure shows at the next checked call; a destructor must not throw.
  (void)cudaEventRecord(timeline_.timed_[index_].end, timeline_.stream_);
}

void Timeline::collect(StageClock& clock, Trace* trace) {
  ringmark::cuda::check(cudaStreamSynchronize(stream_), "wait for the GPU");
  for (const Timed& timed : timed_) {
    const double length_us = double{timed.end.since(timed.begin)} * 1e3;
    clock.add(timed.stage, length_us * 1e-6);
    if (trace != nullptr) {
      trace->add(timed.stage, lane_, origin_us_ + double{timed.begin.since(origin_)} * 1e3, length_us);
    }
  }
  timed_.clear();
}

}  // namespace ringmark::runtime::cuda
