#include "cluster/doctor/shared_memory.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>

#include "comm/shared_folder.h"

namespace ringmark::cluster {
namespace {

namespace fs = std::filesystem;

// Beside these, comm/shared_folder clears its own folders when the next job starts.
constexpr std::array<std::string_view, 6> kPrefixes = {"vader_segment.", "osc_rdma.", "sm_segment.",
                                                       "ucx_shm_posix_", "nccl-",     "cuda.shm."};
// A job that has just made a file may not have mapped it yet.
constexpr std::chrono::seconds kYoung{5};

bool is_old_own_file(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0 || found.st_uid != geteuid() || !S_ISREG(found.st_mode)) return false;
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return now - found.st_mtime > kYoung.count();
}

std::vector<std::string> candidates() {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator entry(comm::kSharedMemory, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool known =
        std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (known && is_old_own_file(entry->path().string())) paths.push_back(entry->path().string());
  }
  std::ranges::sort(paths);
  return paths;
}

void add_mapped(const fs::path& process, std::set<std::string>& used) {
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t path = line.find(comm::kSharedMemory);
    if (path != std::string::npos) used.insert(line.substr(path));
  }
}

void add_open(const fs::path& process, std::set<std::string>& used) {
  std::error_code error;
  for (fs::directory_iterator entry(process / "fd", error), end; !error && entry != end; entry.increment(error)) {
    std::error_code unreadable;
    const fs::path target = fs::read_symlink(entry->path(), unreadable);
    if (!unreadable) used.insert(target.string());
  }
}

std::set<std::string> used_by_processes() {
  std::set<std::string> used;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    if (std::isdigit(static_cast<unsigned char>(entry->path().filename().string().front())) == 0) continue;
    add_mapped(entry->path(), used);
    add_open(entry->path(), used);
  }
  return used;
}

}  // namespace

SharedMemory look_at_shared_memory() {
  SharedMemory memory;
  struct statvfs found {};
  if (statvfs(comm::kSharedMemory, &found) == 0) {
    memory.bytes = static_cast<std::int64_t>(found.f_blocks) * static_cast<std::int64_t>(found.f_frsize);
    memory.free = static_cast<std::int64_t>(found.f_bavail) * static_cast<std::int64_t>(found.f_frsize);
  }
  memory.leftovers = candidates();
  if (memory.leftovers.empty()) return memory;
  const std::set<std::string> used = used_by_processes();
  std::erase_if(memory.leftovers, [&](const std::string& path) { return used.contains(path); });
  return memory;
}

}  // namespace ringmark::cluster
