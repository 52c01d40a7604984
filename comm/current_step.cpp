#include "comm/current_step.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

namespace ringmark::comm {
namespace {

thread_local Step current;

std::mutex mutex;
Step latest;

}  // namespace

const Step& current_step() { return current; }

Step latest_step() {
  const std::lock_guard lock(mutex);
  return latest;
}

std::string words_of(const Step& step) {
  std::string words;
  const auto add = [&](const std::string& part) { words += (words.empty() ? "" : ", ") + part; };
  if (step.layer >= 0) add(fmt::format("layer {}", step.layer));
  if (!step.stage.empty()) add(fmt::format("stage {}", step.stage));
  if (!step.unit.empty()) add(fmt::format("{} {}", step.unit, step.number));
  return words;
}

StepScope::StepScope() : before_(current) {}

StepScope::~StepScope() { enter(std::move(before_)); }

void StepScope::enter(Step step) {
  current = std::move(step);
  const std::lock_guard lock(mutex);
  latest = current;
}

EnterLayer::EnterLayer(std::int64_t layer) {
  Step step = current_step();
  step.layer = layer;
  enter(std::move(step));
}

EnterStage::EnterStage(std::string_view stage) {
  Step step = current_step();
  step.stage = stage;
  enter(std::move(step));
}

EnterStep::EnterStep(std::string_view unit, std::int64_t number) {
  Step step = current_step();
  step.unit = unit;
  step.number = number;
  enter(std::move(step));
}

}  // namespace ringmark::comm
