#include "cluster/simulation/replay.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>

#include "cluster/simulation/flows.h"
#include "cluster/simulation/simgrid_module.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

// Beside the program, as in a build; above it, as for tests of a build; or where it is installed. Empty: not here.
std::string module_path() {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* place : {".", "..", "../lib"}) {
    const std::filesystem::path path = folder / place / kSimgridModule;
    if (std::filesystem::exists(path)) return path;
  }
  return {};
}

std::vector<RankTimes> simulate(const Topology& topology, const std::vector<RankSchedule>& schedules, bool aggregated) {
  void* const module = dlopen(module_path().c_str(), RTLD_NOW);
  void* const function = module == nullptr ? nullptr : dlsym(module, kSimgridFunction);
  if (function == nullptr) fail_environment(dlerror());
  std::vector<RankTimes> times(schedules.size());
  reinterpret_cast<SimgridFunction*>(function)(topology, schedules, aggregated, times);
  return times;
}

void write_all(int file, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(file, from, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) _exit(1);
    from += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

std::vector<RankTimes> read_times(int file, std::size_t count) {
  std::vector<RankTimes> times(count);
  auto* to = reinterpret_cast<char*>(times.data());
  std::size_t left = count * sizeof(RankTimes);
  while (left > 0) {
    const ssize_t got = read(file, to, left);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    to += got;
    left -= static_cast<std::size_t>(got);
  }
  if (left > 0) times.clear();
  return times;
}

std::vector<RankTimes> simulate_in_child(const Topology& topology, const std::vector<RankSchedule>& schedules,
                                         bool aggregated) {
  int ends[2];
  if (pipe(ends) != 0) fail_environment(fmt::format("simulate: no pipe: {}", std::strerror(errno)));
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) fail_environment(fmt::format("simulate: no process for SimGrid: {}", std::strerror(errno)));
  if (child == 0) {
    close(ends[0]);
    try {
      const std::vector<RankTimes> times = simulate(topology, schedules, aggregated);
      write_all(ends[1], times.data(), times.size() * sizeof(RankTimes));
    } catch (const std::exception& error) {
      fmt::print(stderr, "ringmark: simulate: {}\n", error.what());
      _exit(1);
    }
    _exit(0);
  }
  close(ends[1]);
  std::vector<RankTimes> times = read_times(ends[0], schedules.size());
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (times.empty() || status != 0) {
    fail_environment(fmt::format("simulate: SimGrid ended without a result for {} ranks (wait status {})",
                                 topology.ranks(), status));
  }
  return times;
}

}  // namespace

bool can_replay() { return !module_path().empty(); }

Replay replay(const Topology& topology, const std::vector<RankSchedule>& schedules, std::int64_t flow_limit) {
  require(static_cast<int>(schedules.size()) == topology.ranks(), "a schedule a rank");
  if (!can_replay()) {
    fail_environment("this ringmark was built without SimGrid: install libsimgrid-dev 3.32 or later and build again");
  }
  Replay result;
  result.flows = count_flows(topology, schedules);
  result.aggregated = result.flows > flow_limit;
  result.ranks = simulate_in_child(topology, schedules, result.aggregated);
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    result.seconds = std::max(result.seconds, result.ranks[rank].end);
    for (const Step& step : schedules[rank].steps) {
      for (const SimulatedWave& wave : step.waves) {
        for (const OwnerReads& reads : wave.reads) {
          const bool inside = topology.node_of(reads.owner) == topology.node_of(static_cast<int>(rank));
          (inside ? result.inside_bytes : result.outside_bytes) += reads.bytes;
        }
      }
    }
  }
  return result;
}

}  // namespace ringmark::cluster
