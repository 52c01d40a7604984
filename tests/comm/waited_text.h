// Lines that tell how long somebody waited, compared without the seconds: a busy machine takes longer.
#pragma once

#include <regex>
#include <string>

namespace ringmark::comm {

// "waited 0.5 s" becomes "waited ... s".
inline std::string without_seconds(const std::string& text) {
  static const std::regex seconds("waited [0-9]+\\.[0-9] s");
  return std::regex_replace(text, seconds, "waited ... s");
}

}  // namespace ringmark::comm
