// Progress of long stages on stderr, by rank 0 only: a bar where stderr is a terminal, otherwise one line every ten
// seconds, so that a batch log stays short. Never on stdout, which belongs to results.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/progress_sink.h"

namespace ringmark::cluster {

class Progress final : public runtime::ProgressSink {
 public:
  struct Screen {
    enum class Form { kSilent, kLines, kBar };
    Form form = Form::kSilent;
    bool colour = false;
    int width = 80;  // columns
  };
  using Write = std::function<void(std::string_view)>;
  using Seconds = std::function<double()>;  // a clock that never goes back

  Progress(int rank, bool quiet);
  Progress(Screen screen, Write write, Seconds now);
  ~Progress() override;  // clears a bar that an error has left on the screen
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Ends the stage before, if it was not ended.
  void begin(std::string_view stage, std::int64_t total) override;
  // `done` of the stage's total so far. From one thread.
  void advance(std::int64_t done) override;
  void end() override;

 private:
  std::string bar(double elapsed) const;
  std::string line(double elapsed) const;
  int percent() const;

  Screen screen_;
  Write write_;
  Seconds now_;
  std::string stage_;  // empty between stages
  std::int64_t total_ = 0;
  std::int64_t done_ = 0;
  double began_ = 0;
  double next_ = 0;     // time of the next bar or line
  bool drawn_ = false;  // a bar or a line of this stage is out
};

// What stderr can show: nothing on other ranks and with `quiet`; a bar on a terminal that can move its cursor, in
// colour unless NO_COLOR is set.
Progress::Screen stderr_screen(int rank, bool quiet);

}  // namespace ringmark::cluster
