#include "kvstore/safetensors_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace ringmark::kvstore {

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Descriptor::~Descriptor() {
  if (is_open()) ::close(number_);
}

int Descriptor::release() { return std::exchange(number_, -1); }

// Without O_NONBLOCK opening a named pipe would wait for a writer that never comes.
Descriptor open_for_reading(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) fail_bad_input(fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
  return file;
}

std::int64_t regular_file_bytes(const Descriptor& file, const std::string& path) {
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) fail_environment(fmt::format("{}: {}", path, std::strerror(errno)));
  if (S_ISDIR(status.st_mode)) fail_bad_input(fmt::format("{}: is a folder, not a file", path));
  if (!S_ISREG(status.st_mode)) fail_bad_input(fmt::format("{}: is not a regular file", path));
  return status.st_size;
}

void read_range(const Descriptor& file, std::int64_t offset, std::span<std::byte> out, const std::string& what) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::int64_t at = offset + static_cast<std::int64_t>(done);
    const ssize_t got = ::pread(file.number(), out.data() + done, out.size() - done, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_environment(fmt::format("{}: reading at byte {}: {}", what, at, std::strerror(errno)));
    if (got == 0) {
      fail_bad_input(
          fmt::format("{}: file ends at byte {}, needed are {} bytes from {}", what, at, out.size(), offset));
    }
    done += static_cast<std::size_t>(got);
  }
}

void write_range(const Descriptor& file, std::int64_t offset, std::span<const std::byte> data,
                 const std::string& what) {
  std::size_t done = 0;
  while (done < data.size()) {
    const std::int64_t at = offset + static_cast<std::int64_t>(done);
    const ssize_t put = ::pwrite(file.number(), data.data() + done, data.size() - done, at);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      fail_environment(fmt::format("{}: writing {} bytes at byte {}: {}", what, data.size() - done, at,
                                   put < 0 ? std::strerror(errno) : "nothing was written"));
    }
    done += static_cast<std::size_t>(put);
  }
}

void sync_folder(const std::string& folder) {
  const std::string path = folder.empty() ? "." : folder;
  const Descriptor opened(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some network file systems cannot sync a folder (EINVAL); their rename is durable on the server.
  if (!opened.is_open() || (::fsync(opened.number()) != 0 && errno != EINVAL)) {
    fail_environment(fmt::format("{}: cannot sync the folder: {}", path, std::strerror(errno)));
  }
}

}  // namespace ringmark::kvstore
