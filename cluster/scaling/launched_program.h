// A program that runs to its end, to a time limit, or until this process is told to stop: in a process group of its
// own, so that nothing of it stays behind.
#pragma once

#include <string>
#include <vector>

namespace ringmark::cluster {

// SIGTERM, SIGINT and SIGUSR1 are kept from this process while this lives, for run_program to see, and act by default
// again behind it. One at a time, made before any thread.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Waits for a signal, or until so many seconds have passed. Returns the number of the signal (SIGCHLD: a child has
  // changed), 0 for none.
  int wait(double seconds) const;

 private:
  int descriptor_ = -1;
};

struct ProgramEnd {
  enum class How { kExit, kSignal, kTimeout, kStopped };
  How how = How::kExit;
  int code =
      0;  // exit code, or signal of a program that died of one; of kTimeout and kStopped that of the end we gave it
  double seconds = 0;
};

struct ProgramFiles {
  std::string out;
  std::string error;
};

// stdin is empty. A program that is over its limit, or running when a signal says to stop, gets SIGTERM, after 5 s
// SIGQUIT (which makes srun end a step that does not answer), after 5 s more SIGKILL. Throws Error(kEnvironment) when
// it cannot be started.
ProgramEnd run_program(const std::vector<std::string>& command, const ProgramFiles& files, double limit_seconds,
                       const StopSignals& signals);

// What a short command prints on stdout; empty when it fails or is not there.
std::string output_of(const std::string& shell_command);

}  // namespace ringmark::cluster
