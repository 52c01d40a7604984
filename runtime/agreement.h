// A step that may fail on some ranks only (reading its slice of a file, finding the memory) must fail on all of them,
// in words once.
#pragma once

#include <functional>
#include <string_view>

#include "comm/communicator.h"
#include "core/error.h"

namespace ringmark::runtime {

// An error that every rank knows of: nobody waits for anybody, the job can end in order.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Collective. Runs `step` on every rank; when it throws Error anywhere, throws AgreedError on every rank: with the text
// on the lowest failing rank, with the same code and an empty text on the others (somebody else says it).
void agree(comm::Communicator& communicator, std::string_view stage, const std::function<void()>& step);

}  // namespace ringmark::runtime
