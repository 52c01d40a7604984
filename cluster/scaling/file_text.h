// Text files of a study, read whole.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "core/error.h"

namespace ringmark::cluster {

// Throws Error(kBadInput) with path and cause.
inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_bad_input(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace ringmark::cluster
