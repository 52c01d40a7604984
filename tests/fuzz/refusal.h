// What every fuzz target holds: an input is accepted, or refused as bad input in one line. Anything else ends the
// process, which is how a finding is reported.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "core/error.h"

namespace ringmark::fuzz {

inline void must_hold(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

template <class Parse>
bool accepts(Parse parse) {
  try {
    parse();
    return true;
  } catch (const Error& error) {
    must_hold(error.code() == ExitCode::kBadInput, "a refusal is about the input");
    must_hold(std::string_view(error.what()).find('\n') == std::string_view::npos, "a refusal is one line");
    return false;
  }
}

}  // namespace ringmark::fuzz
