// What a run has done so far, gathered by the thread that works and read by the one that reports.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/progress_sink.h"

namespace ringmark::cluster {

struct StageTotals {
  std::string stage;
  std::string lane;  // as in runtime::TraceSpan
  double seconds = 0;
  std::int64_t received_bytes = 0;  // from other ranks, while the stage ran; 0 on a GPU's lanes
  std::int64_t spans = 0;
};

struct StageProgress {
  std::string stage;
  std::int64_t done = 0;
  std::int64_t total = 0;
};

// From any thread.
class RunState {
 public:
  // True the first time.
  bool begin(std::string_view stage);
  // Of the span alone. True the first time.
  bool end(std::string_view stage, std::string_view lane, double seconds, StageTotals& span);
  std::vector<StageTotals> totals() const;

  void progress(std::string_view stage, std::int64_t done, std::int64_t total);
  std::vector<StageProgress> progress() const;

 private:
  StageTotals& totals_of(std::string_view stage, std::string_view lane);

  mutable std::mutex mutex_;
  std::vector<StageTotals> totals_;                            // in the order of their beginning
  std::map<std::string, std::int64_t, std::less<>> received_;  // when the stage began, of all stages
  std::vector<StageProgress> progress_;
};

// Passes progress on to what shows it, and remembers it. An advance is one lock.
class ObservedProgress final : public runtime::ProgressSink {
 public:
  // Both outlive this.
  ObservedProgress(RunState& state, runtime::ProgressSink& shown) : state_(state), shown_(shown) {}

  void begin(std::string_view stage, std::int64_t total) override;
  void advance(std::int64_t done) override;
  void end() override { shown_.end(); }

 private:
  RunState& state_;
  runtime::ProgressSink& shown_;
  std::string stage_;
  std::int64_t total_ = 0;
};

}  // namespace ringmark::cluster
