#include "cluster/doctor/supervised_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace ringmark::cluster {
namespace {

using Clock = std::chrono::steady_clock;

volatile std::sig_atomic_t child_of_this_process = 0;

void pass_on(int signal) {
  if (child_of_this_process > 0) kill(static_cast<pid_t>(child_of_this_process), signal);
}

[[noreturn]] void run_child(const std::function<int(const RunReport&)>& work, int pipe, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) std::_Exit(1);
  std::exit(work(RunReport(pipe)));
}

// All that the child writes until it has closed its end, or the time is up: then false.
bool read_report(int pipe, Clock::time_point end, std::string& text) {
  std::array<char, 512> buffer{};
  for (;;) {
    pollfd event{pipe, POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    const int ready = poll(&event, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const auto got = read(pipe, buffer.data(), buffer.size());
    if (got <= 0) return true;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

std::string words_of(int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::kPeer)) {
    return "waited in vain for other ranks; the line on stderr names the stage";
  }
  if (!WIFSIGNALED(status)) {
    return fmt::format("MPI ended the process with exit code {}; its own words are on stderr", WEXITSTATUS(status));
  }
  const int signal = WTERMSIG(status);
  // What mpirun and srun send when another rank has ended.
  if (signal == SIGTERM) return "told to end before all ranks had met: another rank, or the launcher, ended the job";
  return fmt::format("the process was ended by signal {} ({})", signal, strsignal(signal));
}

}  // namespace

void RunReport::write(const std::string& text) const {
  [[maybe_unused]] const auto written = ::write(pipe_, text.data(), text.size());
}

SupervisedEnd run_supervised(const std::function<int(const RunReport&)>& work, std::chrono::duration<double> limit) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail_environment(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) fail_environment(fmt::format("cannot start a process: {}", std::strerror(errno)));
  if (child == 0) {
    close(ends[0]);
    run_child(work, ends[1], parent);
  }
  close(ends[1]);
  child_of_this_process = child;
  for (const int signal : {SIGTERM, SIGUSR1}) std::signal(signal, pass_on);
  SupervisedEnd end;
  std::string report;
  const bool in_time = read_report(ends[0], Clock::now() + std::chrono::duration_cast<Clock::duration>(limit), report);
  if (!in_time) kill(child, SIGKILL);
  const int status = wait_for(child);
  child_of_this_process = 0;
  close(ends[0]);
  end.complete = report == "R" && WIFEXITED(status);
  end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (!in_time)
    end.words = fmt::format("no end within {:.0f} s", limit.count());
  else if (!end.complete)
    end.words = report.empty() || report == "R" ? words_of(status) : report;
  return end;
}

}  // namespace ringmark::cluster
