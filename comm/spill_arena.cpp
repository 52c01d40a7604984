#include "comm/spill_arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace ringmark::comm {
namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::size_t mapped_bytes(std::size_t bytes) {
  const std::size_t page = page_bytes();
  return std::max((bytes + page - 1) / page * page, page);
}

[[noreturn]] void fail_to_spill(const std::string& folder, std::size_t bytes, const std::string& reason) {
  fail_environment(fmt::format("{}: no room for {} bytes of spilled blocks: {}", folder, bytes, reason));
}

class UnnamedFile {
 public:
  UnnamedFile(const std::string& folder, std::size_t bytes) : number_(open_in(folder)) {
    if (number_ < 0) fail_to_spill(folder, bytes, std::strerror(errno));
    try {
      reserve(folder, bytes);
    } catch (...) {
      ::close(number_);
      throw;
    }
  }
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;
  ~UnnamedFile() { ::close(number_); }

  int number() const { return number_; }

 private:
  static int open_in(const std::string& folder) {
    const int unnamed = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (unnamed >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return unnamed;
    // File systems without unnamed files, such as NFS.
    std::string name = folder + "/ringmark-spill.XXXXXX";
    const int named = ::mkostemp(name.data(), O_CLOEXEC);
    if (named >= 0) ::unlink(name.c_str());
    return named;
  }

  void reserve(const std::string& folder, std::size_t bytes) const {
    // Asked first: a reservation that fails half way takes what others need for a moment.
    struct statvfs found {};
    if (fstatvfs(number_, &found) == 0 && bytes / found.f_frsize >= found.f_bavail) {
      fail_to_spill(folder, bytes, fmt::format("{} bytes are free", found.f_bavail * found.f_frsize));
    }
    const int failure = posix_fallocate(number_, 0, static_cast<off_t>(bytes));
    if (failure != 0) fail_to_spill(folder, bytes, std::strerror(failure));
  }

  int number_;
};

}  // namespace

std::byte* map_with_spill(std::size_t bytes, const SpillPolicy& policy) {
  const std::size_t total = mapped_bytes(bytes);
  const std::size_t budget = static_cast<std::size_t>(policy.memory_bytes) / page_bytes() * page_bytes();
  const std::size_t in_memory = std::min(total, budget);
  const std::size_t on_disk = total - in_memory;
  void* const start = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) {
    fail_environment(fmt::format("no memory for a region of {} bytes: {}", bytes, std::strerror(errno)));
  }
  auto* const memory = static_cast<std::byte*>(start);
  if (on_disk == 0) return memory;
  try {
    const UnnamedFile file(policy.folder, on_disk);
    if (mmap(memory + in_memory, on_disk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.number(), 0) ==
        MAP_FAILED) {
      fail_to_spill(policy.folder, on_disk, std::strerror(errno));
    }
  } catch (...) {
    munmap(memory, total);
    throw;
  }
  return memory;
}

void unmap_with_spill(std::byte* memory, std::size_t bytes) { munmap(memory, mapped_bytes(bytes)); }

}  // namespace ringmark::comm
