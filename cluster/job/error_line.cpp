#include "cluster/job/error_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace ringmark::cluster {

void print_error(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, '?');
  fmt::print(stderr, "ringmark: {}\n", text);
}

}  // namespace ringmark::cluster
