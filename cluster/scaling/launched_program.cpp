#include "cluster/scaling/launched_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/error.h"

namespace ringmark::cluster {
namespace {

constexpr double kGraceSeconds = 5;  // between SIGTERM, SIGQUIT and SIGKILL

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

[[noreturn]] void become(const std::vector<std::string>& command, const ProgramFiles& files, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);  // died in between
  const sigset_t watched = watched_signals();
  sigprocmask(SIG_UNBLOCK, &watched, nullptr);
  signal(SIGXFSZ, SIG_DFL);
  const int in = open("/dev/null", O_RDONLY);
  const int out = open(files.out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int error = open(files.error.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (in < 0 || out < 0 || error < 0) _exit(127);
  dup2(in, 0);
  dup2(out, 1);
  dup2(error, 2);
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  dprintf(2, "%s: cannot be started: %s\n", arguments[0], std::strerror(errno));
  _exit(127);
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t watched = watched_signals();
  pthread_sigmask(SIG_BLOCK, &watched, nullptr);
  descriptor_ = signalfd(-1, &watched, SFD_CLOEXEC);
  if (descriptor_ < 0) fail_environment(fmt::format("cannot take signals: {}", std::strerror(errno)));
}

StopSignals::~StopSignals() {
  close(descriptor_);
  const sigset_t watched = watched_signals();
  pthread_sigmask(SIG_UNBLOCK, &watched, nullptr);
}

int StopSignals::wait(double seconds) const {
  pollfd wanted = {descriptor_, POLLIN, 0};
  if (poll(&wanted, 1, static_cast<int>(std::ceil(std::max(0.0, seconds) * 1000))) <= 0) return 0;
  signalfd_siginfo info{};
  return read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

ProgramEnd run_program(const std::vector<std::string>& command, const ProgramFiles& files, double limit_seconds,
                       const StopSignals& signals) {
  const pid_t parent = getpid();
  const auto begin = Clock::now();
  const pid_t child = fork();
  if (child < 0) fail_environment(fmt::format("{}: cannot be started: {}", command.front(), std::strerror(errno)));
  if (child == 0) become(command, files, parent);
  setpgid(child, child);  // whoever is first

  constexpr std::array kLadder = {SIGTERM, SIGQUIT, SIGKILL};
  std::size_t rung = 0;
  ProgramEnd end;
  double deadline = limit_seconds;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    const int signal = signals.wait(deadline - seconds_since(begin));
    const bool stop = signal != 0 && signal != SIGCHLD;
    if (!stop && seconds_since(begin) < deadline) continue;
    if (rung == 0) end.how = stop ? ProgramEnd::How::kStopped : ProgramEnd::How::kTimeout;
    if (rung < kLadder.size()) kill(-child, kLadder[rung++]);
    deadline = seconds_since(begin) + kGraceSeconds;
  }
  end.seconds = seconds_since(begin);
  kill(-child, SIGKILL);  // whatever of the group outlived its leader
  end.code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  if (rung == 0) end.how = WIFSIGNALED(status) ? ProgramEnd::How::kSignal : ProgramEnd::How::kExit;
  return end;
}

std::string output_of(const std::string& shell_command) {
  std::FILE* pipe =
      popen(fmt::format("{} 2> /dev/null < /dev/null", shell_command).c_str(), "r");  // NOLINT: fixed words
  if (pipe == nullptr) return "";
  std::string text;
  std::array<char, 4096> buffer{};
  while (const std::size_t bytes = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), bytes);
  return pclose(pipe) == 0 ? text : "";
}

}  // namespace ringmark::cluster
