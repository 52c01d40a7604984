#include "cluster/options/text_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "kvstore/safetensors_io.h"

namespace ringmark::cluster {
namespace {

std::string temporary_path(const std::string& path) { return fmt::format("{}.{}.tmp", path, getpid()); }

}  // namespace

void check_text_file(const std::string& path) {
  if (std::filesystem::is_directory(path)) fail_bad_input(fmt::format("{}: cannot be written: it is a folder", path));
  const std::string temporary = temporary_path(path);
  std::FILE* file = std::fopen(temporary.c_str(), "wx");
  if (file == nullptr) fail_bad_input(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  std::fclose(file);
  std::remove(temporary.c_str());
}

void write_text_file(const std::string& path, const std::string& text) {
  const std::string temporary = temporary_path(path);
  std::FILE* file = std::fopen(temporary.c_str(), "wx");
  bool good = file != nullptr;
  if (good) {
    good = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0 &&
           fsync(fileno(file)) == 0;
    good = std::fclose(file) == 0 && good;
  }
  if (good && std::rename(temporary.c_str(), path.c_str()) == 0) {
    kvstore::sync_folder(std::filesystem::path(path).parent_path().string());
    return;
  }
  const std::string cause = std::strerror(errno);
  std::remove(temporary.c_str());
  fail_environment(fmt::format("{}: cannot write: {}", path, cause));
}

}  // namespace ringmark::cluster
