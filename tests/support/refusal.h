// What an input is refused with.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace ringmark::test {

// The message; empty when it is accepted. It must be refused as bad input.
template <class Ask>
std::string refusal_of(Ask&& ask) {
  try {
    ask();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return error.what();
  }
  return "";
}

}  // namespace ringmark::test
