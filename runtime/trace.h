// What happened when, for chrome://tracing and Perfetto. Times are microseconds of a clock that all processes of a host
// share (CLOCK_MONOTONIC), so that traces of its ranks lie side by side.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringmark::runtime {

// Told of stages as they begin and end, by the thread that works.
class StageObserver {
 public:
  virtual ~StageObserver() = default;
  virtual void stage_began(std::string_view stage) = 0;
  // `lane` as in TraceSpan. Of work on a GPU only the end is told, and late: when its times are known.
  virtual void stage_ended(std::string_view stage, std::string_view lane, double seconds) = 0;
};

struct TraceSpan {
  std::string name;
  std::string lane;  // "host", "gpu compute", "gpu fetch": one line each under the rank
  double start_us = 0.0;
  double length_us = 0.0;
};

// Blocks of one owner that this rank asked for at once, by one-sided reads.
struct TraceRead {
  int owner = 0;
  std::int64_t bytes = 0;
  double asked_us = 0.0;
  double arrived_us = 0.0;  // all reads of the batch: when their wait returned
};

class Trace {
 public:
  static double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  void add(std::string_view name, std::string_view lane, double start_us, double length_us) {
    if (keeps_) spans_.push_back({std::string(name), std::string(lane), start_us, length_us});
    if (observer_ != nullptr) observer_->stage_ended(name, lane, length_us * 1e-6);
  }
  void add_read(const TraceRead& read) {
    if (keeps_) reads_.push_back(read);
  }
  // A stage of the host that will end with add().
  void begin(std::string_view name) {
    if (observer_ != nullptr) observer_->stage_began(name);
  }
  const std::vector<TraceSpan>& spans() const { return spans_; }
  const std::vector<TraceRead>& reads() const { return reads_; }

  // Outlives the trace; may be null.
  void observe_by(StageObserver* observer) { observer_ = observer; }
  // false: nothing is kept, for who only observes; a run of many steps would grow without end.
  void keep(bool keeps) { keeps_ = keeps; }

 private:
  std::vector<TraceSpan> spans_;
  std::vector<TraceRead> reads_;
  StageObserver* observer_ = nullptr;
  bool keeps_ = true;
};

// How long a span of `lane` ran while none of `by` did: what was not hidden. Spans of `lane` do not overlap each other.
double uncovered_us(const Trace& trace, std::string_view lane, std::string_view by);

}  // namespace ringmark::runtime
