// Seconds a stage; with a trace, also when.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/current_step.h"
#include "runtime/trace.h"

namespace ringmark::runtime {

class StageClock {
 public:
  // Every span also goes to `trace`, which outlives the clock's last span.
  void record_in(Trace* trace) { trace_ = trace; }

  // Adds the time until destruction to a stage.
  class Span {
   public:
    Span(StageClock& clock, std::size_t stage)
        : clock_(clock), stage_(stage), entered_(clock.stages_[stage].first), start_us_(Trace::now_us()) {
      if (clock_.trace_ != nullptr) clock_.trace_->begin(clock_.stages_[stage_].first);
    }
    ~Span() {
      auto& [name, seconds] = clock_.stages_[stage_];
      const double length_us = Trace::now_us() - start_us_;
      seconds += length_us * 1e-6;
      if (clock_.trace_ != nullptr) clock_.trace_->add(name, "host", start_us_, length_us);
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    StageClock& clock_;
    std::size_t stage_;
    comm::EnterStage entered_;
    double start_us_;
  };

  [[nodiscard]] Span time(std::string_view stage) { return Span(*this, index_of(stage)); }
  // Time that was measured otherwise.
  void add(std::string_view stage, double seconds) { stages_[index_of(stage)].second += seconds; }

  // 0 for a stage that never began.
  double seconds(std::string_view stage) const {
    for (const auto& [name, spent] : stages_) {
      if (name == stage) return spent;
    }
    return 0.0;
  }

 private:
  std::size_t index_of(std::string_view stage) {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (stages_[i].first == stage) return i;
    }
    stages_.emplace_back(stage, 0.0);
    return stages_.size() - 1;
  }

  std::vector<std::pair<std::string, double>> stages_;
  Trace* trace_ = nullptr;
};

}  // namespace ringmark::runtime
