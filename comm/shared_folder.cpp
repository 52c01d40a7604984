#include "comm/shared_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>

#include "comm/deadline.h"

namespace ringmark::comm {
namespace {

namespace fs = std::filesystem;

constexpr std::array kPlaces = {"OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_osc_rdma_backing_directory",
                                "OMPI_MCA_osc_sm_backing_directory"};
// Others hold the exclusive lock for as long as it takes to remove a few files.
constexpr int kAttempts = 200;
constexpr std::chrono::milliseconds kBetweenAttempts{5};

std::mutex mutex;
std::string folder_of_this_process;  // empty: none

std::string prefix_of_user() { return fmt::format("{}/ringmark-{}-", kSharedMemory, geteuid()); }

// The same on every rank of a host: the name that the launcher gave to the job.
std::string path_of_job() {
  const char* launched = std::getenv("PMIX_NAMESPACE");
  if (launched == nullptr) return {};
  std::string job(launched);
  std::replace(job.begin(), job.end(), '/', '_');
  return prefix_of_user() + job;
}

// -1 with errno: not there (ENOENT), or not a folder of this user.
int open_own(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat found {};
  if (folder < 0 || (fstat(folder, &found) == 0 && found.st_uid == geteuid())) return folder;
  close(folder);
  errno = EPERM;
  return -1;
}

// Whether what was opened still has its name: another process may have removed it before this one had a lock.
bool is_named(int folder, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(folder, &opened) == 0 && lstat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

// Ranks that have not heard yet may add a file meanwhile; they cannot any more once the folder is gone.
void remove(const std::string& path) noexcept {
  std::error_code error;
  for (int attempt = 0; attempt < kAttempts && fs::exists(path, error); ++attempt) fs::remove_all(path, error);
}

// Takes the exclusive lock for it, and gives up a shared one.
void remove_unless_locked(int folder, const std::string& path) {
  if (flock(folder, LOCK_EX | LOCK_NB) == 0 && is_named(folder, path)) remove(path);
}

// The kernel lets go of the locks of a process however that ends.
void sweep() {
  const std::string prefix = prefix_of_user();
  std::error_code error;
  for (fs::directory_iterator entry(kSharedMemory, error), end; !error && entry != end; entry.increment(error)) {
    const std::string path = entry->path().string();
    if (!path.starts_with(prefix)) continue;
    const int folder = open_own(path);
    if (folder < 0) continue;
    remove_unless_locked(folder, path);
    close(folder);
  }
}

}  // namespace

SharedFolder::SharedFolder(std::chrono::duration<double> leave_timeout)
    : leave_timeout_(leave_timeout), path_(path_of_job()) {
  if (path_.empty()) return;
  sweep();
  if (!join()) {
    path_.clear();
    return;
  }
  for (const char* place : kPlaces) setenv(place, path_.c_str(), 0);
  const std::lock_guard lock(mutex);
  folder_of_this_process = path_;
}

SharedFolder::~SharedFolder() {
  if (path_.empty()) return;
  Deadline deadline = Deadline::in(leave_timeout_);
  remove_unless_locked(folder_, path_);
  while (is_named(folder_, path_) && !deadline.passed()) {
    std::this_thread::sleep_for(kBetweenAttempts);
    remove_unless_locked(folder_, path_);
  }
  const std::lock_guard lock(mutex);
  folder_of_this_process.clear();
  close(folder_);
}

bool SharedFolder::join() {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (mkdir(path_.c_str(), S_IRWXU) != 0 && errno != EEXIST) return false;
    folder_ = open_own(path_);
    if (folder_ < 0 && errno != ENOENT) return false;
    if (folder_ >= 0 && flock(folder_, LOCK_SH | LOCK_NB) == 0 && is_named(folder_, path_)) return true;
    if (folder_ >= 0) close(folder_);
    std::this_thread::sleep_for(kBetweenAttempts);
  }
  return false;
}

void SharedFolder::discard() noexcept {
  const std::lock_guard lock(mutex);
  if (!folder_of_this_process.empty()) remove(folder_of_this_process);
}

}  // namespace ringmark::comm
