// SIGTERM and SIGUSR1, the two ways in which a batch system says that time is up. A thread of its own takes them, so
// that what follows may lock and write:
//   1. the rank leaves signal.RANK.json in the log folder: which signal, and what the rank was waiting for. When a peer
//      dies, mpirun ends the others by SIGTERM, and this is all that is left to tell where;
//   2. a command that can write a checkpoint sees asked() and does; otherwise the signal does what it does by default,
//      after the job's files in shared memory are gone.
#pragma once

#include <signal.h>

#include <atomic>
#include <string>
#include <thread>

#include "cluster/telemetry/telemetry.h"

namespace ringmark::cluster {

class Termination {
 public:
  // Blocks both signals in this thread and in those that it starts: made before any other thread, one at a time.
  // log_dir: where signal.RANK.json goes; empty: nowhere. telemetry: is told of signals, and outlives this; may be
  // null.
  Termination(std::string log_dir, int rank, Telemetry* telemetry = nullptr);
  // Both signals act by default again.
  ~Termination();
  Termination(const Termination&) = delete;
  Termination& operator=(const Termination&) = delete;

  // From here on the signals only ask; the command looks at asked() often enough.
  void accept_requests() { accepts_ = true; }
  // A checkpoint is wanted. Other ranks may not have been asked yet: they agree before they act.
  bool asked() const { return asked_; }

 private:
  void take_signals();
  void leave_note(int signal) const;

  std::string log_dir_;
  int rank_;
  Telemetry* telemetry_;
  pid_t mpirun_;
  sigset_t before_{};
  int signals_ = -1;  // signalfd
  int stop_ = -1;     // eventfd
  std::atomic<bool> accepts_{false};
  std::atomic<bool> asked_{false};
  std::thread taker_;
};

}  // namespace ringmark::cluster
