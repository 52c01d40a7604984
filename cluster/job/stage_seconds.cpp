#include "cluster/job/stage_seconds.h"

#include <fmt/format.h>

namespace ringmark::cluster {

StageSeconds slowest(comm::Communicator& ranks, std::span<const std::string> stages,
                     std::span<const runtime::StageClock* const> clocks) {
  std::vector<double> values;
  double total = 0.0;
  for (const std::string& stage : stages) {
    double seconds = 0.0;
    for (const runtime::StageClock* clock : clocks) seconds += clock->seconds(stage);
    values.push_back(seconds);
    total += seconds;
  }
  values.push_back(total);
  ranks.all_reduce_max("report", values);
  StageSeconds slowest;
  for (std::size_t i = 0; i < stages.size(); ++i) slowest.emplace_back(stages[i], values[i]);
  slowest.emplace_back("total", values.back());
  return slowest;
}

std::string seconds_text(const StageSeconds& seconds) {
  std::string text;
  for (const auto& [stage, value] : seconds) text += fmt::format("{}{} {:.3f}", text.empty() ? "" : ", ", stage, value);
  return text;
}

}  // namespace ringmark::cluster
