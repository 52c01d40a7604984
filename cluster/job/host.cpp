#include "cluster/job/host.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace ringmark::cluster {
namespace {

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

std::int64_t read_number(const char* path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? value : kUnknown;  // "max" is no number: no limit
}

std::int64_t meminfo_available() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  std::int64_t kilobytes = 0;
  while (file >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes * 1024;
    std::getline(file, unit);
  }
  return kUnknown;
}

}  // namespace

std::int64_t available_memory() {
  std::int64_t available = meminfo_available();
  const std::int64_t limit = read_number("/sys/fs/cgroup/memory.max");
  const std::int64_t used = read_number("/sys/fs/cgroup/memory.current");
  if (limit != kUnknown && used != kUnknown) available = std::min(available, std::max<std::int64_t>(0, limit - used));
  return available;
}

std::int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

int default_threads(int host_ranks) {
  const auto online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t bound;
  CPU_ZERO(&bound);
  const int allowed = sched_getaffinity(0, sizeof(bound), &bound) == 0 ? CPU_COUNT(&bound) : online;
  return std::max(1, allowed < online ? allowed : online / std::max(1, host_ranks));
}

}  // namespace ringmark::cluster
