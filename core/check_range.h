// Refusal of numbers outside their limits, in the one form that all of them have.
#pragma once

#include <cstdint>
#include <string>

#include "core/error.h"

namespace ringmark {

// Throws Error(kBadInput) naming field, value and limits.
inline void check_range(const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  fail_bad_input(std::string(field) + " = " + std::to_string(value) + " is outside [" + std::to_string(low) + ", " +
                 std::to_string(high) + "]");
}

}  // namespace ringmark
