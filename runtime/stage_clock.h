// Seconds a stage.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ringmark::runtime {

class StageClock {
 public:
  // Adds the time until destruction to a stage.
  class Span {
   public:
    Span(StageClock& clock, std::size_t stage) : clock_(clock), stage_(stage), start_(Clock::now()) {}
    ~Span() { clock_.stages_[stage_].second += std::chrono::duration<double>(Clock::now() - start_).count(); }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    using Clock = std::chrono::steady_clock;
    StageClock& clock_;
    std::size_t stage_;
    Clock::time_point start_;
  };

  [[nodiscard]] Span time(std::string_view stage) {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (stages_[i].first == stage) return Span(*this, i);
    }
    stages_.emplace_back(stage, 0.0);
    return Span(*this, stages_.size() - 1);
  }

  // 0 for a stage that never began.
  double seconds(std::string_view stage) const {
    for (const auto& [name, spent] : stages_) {
      if (name == stage) return spent;
    }
    return 0.0;
  }

 private:
  std::vector<std::pair<std::string, double>> stages_;
};

}  // namespace ringmark::runtime
