#include "cluster/job/termination.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "cluster/telemetry/wait_fields.h"
#include "comm/current_wait.h"
#include "comm/shared_folder.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

sigset_t taken_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);
  return set;
}

// mpirun's SIGTERM, of a job in which a rank has died, is followed by SIGKILL after a second; that of a batch system
// leaves time for a checkpoint.
constexpr int kBeforeMpirunKills = 500;  // ms

// 0: not started by mpirun or its daemon.
pid_t find_mpirun() { return std::getenv("OMPI_COMM_WORLD_RANK") != nullptr ? getppid() : 0; }

}  // namespace

Termination::Termination(std::string log_dir, int rank, Telemetry* telemetry)
    : log_dir_(std::move(log_dir)), rank_(rank), telemetry_(telemetry), mpirun_(find_mpirun()) {
  const sigset_t taken = taken_signals();
  pthread_sigmask(SIG_BLOCK, &taken, &before_);
  signals_ = signalfd(-1, &taken, SFD_CLOEXEC);
  stop_ = eventfd(0, EFD_CLOEXEC);
  if (signals_ < 0 || stop_ < 0) {
    fail_environment(fmt::format("cannot take signals: {}", std::strerror(errno)));
  }
  taker_ = std::thread([this] { take_signals(); });
}

Termination::~Termination() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(stop_, &one, sizeof one);
  taker_.join();
  close(signals_);
  close(stop_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Termination::take_signals() {
  pollfd wanted[2] = {{signals_, POLLIN, 0}, {stop_, POLLIN, 0}};
  int patience = -1;  // ms, until this process is as good as killed
  while (true) {
    const int ready = poll(wanted, 2, patience);
    if (ready < 0) continue;  // interrupted
    if (ready == 0) {
      comm::SharedFolder::discard();
      patience = -1;
      continue;
    }
    if (wanted[1].revents != 0) return;
    signalfd_siginfo info{};
    if (read(signals_, &info, sizeof info) != sizeof info) continue;
    const int signal = static_cast<int>(info.ssi_signo);
    leave_note(signal);
    asked_ = true;
    if (accepts_) {
      if (signal == SIGTERM && static_cast<pid_t>(info.ssi_pid) == mpirun_) patience = kBeforeMpirunKills;
      continue;
    }
    comm::SharedFolder::discard();
    const sigset_t taken = taken_signals();
    ::signal(signal, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &taken, nullptr);
    kill(getpid(), signal);
  }
}

void Termination::leave_note(int signal) const {
  const std::string name = signal == SIGTERM ? "SIGTERM" : "SIGUSR1";
  if (telemetry_ != nullptr) telemetry_->told(name);
  if (log_dir_.empty()) return;
  const std::string words = comm::CurrentWait::words();
  const std::string step = comm::words_of(comm::latest_step());
  const std::string working = step.empty() ? "working" : fmt::format("working ({})", step);
  nlohmann::ordered_json note = {{"rank", rank_}, {"signal", name}, {"at", words.empty() ? working : words}};
  if (const auto wait = comm::CurrentWait::latest()) note["wait"] = wait_fields(*wait);
  std::ofstream(fmt::format("{}/signal.{}.json", log_dir_, rank_)) << note.dump() << "\n";
}

}  // namespace ringmark::cluster
