// Where a rank is in its run: layer, stage, and the step of a loop (wave, round, hop). Engines say so as they go on, so
// that whoever waits, fails or is told to end can name the place without being handed it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ringmark::comm {

struct Step {
  std::int64_t layer = -1;   // -1: not in a layer
  std::string stage;         // empty: in none
  std::string unit;          // what `number` counts: "attend wave"; empty: not in a loop that counts
  std::int64_t number = -1;  // from 0
};

// Of this thread.
const Step& current_step();
// Of the thread of this process that went to another step last; from any thread.
Step latest_step();
// "layer 0, stage attend, attend wave 7", what is known of it; empty when nothing is.
std::string words_of(const Step& step);

// Each is in force as long as it lives, in this thread; ends in the reverse order of the beginnings. None of it is for
// loops over rows: a change locks a mutex.
class StepScope {
 public:
  ~StepScope();
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 protected:
  StepScope();
  static void enter(Step step);

 private:
  Step before_;
};

class EnterLayer : public StepScope {
 public:
  explicit EnterLayer(std::int64_t layer);
};

class EnterStage : public StepScope {
 public:
  explicit EnterStage(std::string_view stage);
};

class EnterStep : public StepScope {
 public:
  EnterStep(std::string_view unit, std::int64_t number);
};

}  // namespace ringmark::comm
