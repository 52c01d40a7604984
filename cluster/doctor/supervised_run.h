// A run in a child process, so that there is something to say when MPI ends it: what MPI finds wrong at its start it
// answers by ending the process.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace ringmark::cluster {

// What the child tells its parent.
class RunReport {
 public:
  explicit RunReport(int pipe) : pipe_(pipe) {}
  // The exit code means what it says: all there is to report has been reported.
  void complete() const { write("R"); }
  // One line: why there will be no report.
  void fail(const std::string& words) const { write(words); }

 private:
  void write(const std::string& text) const;
  int pipe_;
};

struct SupervisedEnd {
  bool complete = false;
  int exit_code = 0;
  std::string words;  // why it is not complete
};

// Runs `work` in a child, which ends with the code that it returns, and waits for it; after `limit` the child is
// killed. SIGTERM and SIGUSR1 are the child's business. Before this process has other threads.
SupervisedEnd run_supervised(const std::function<int(const RunReport&)>& work, std::chrono::duration<double> limit);

}  // namespace ringmark::cluster
