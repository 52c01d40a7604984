// Times work on a stream: events around it, read when all is done. Spans go to a stage clock (seconds a stage), to a
// trace, and while the work is enqueued to NVTX, which shows them in Nsight.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/cuda/stream.h"
#include "runtime/stage_clock.h"
#include "runtime/trace.h"

namespace ringmark::runtime::cuda {

class Timeline {
 public:
  // `lane` names the stream in the trace.
  Timeline(cudaStream_t stream, std::string_view lane);

  class Span {
   public:
    Span(Timeline& timeline, std::string_view stage);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Timeline& timeline_;
    std::size_t index_;
  };
  [[nodiscard]] Span time(std::string_view stage) { return Span(*this, stage); }

  // Waits for the stream, then adds what was timed since the last call to the clock and the trace (may be null).
  void collect(StageClock& clock, Trace* trace);

 private:
  struct Timed {
    std::string stage;
    ringmark::cuda::Event begin, end;
  };

  cudaStream_t stream_;
  std::string lane_;
  ringmark::cuda::Event origin_;
  double origin_us_ = 0.0;
  std::vector<Timed> timed_;
};

}  // namespace ringmark::runtime::cuda
