// A step that must succeed on all ranks or fail on all.
#pragma once

#include <functional>
#include <string_view>

#include "comm/communicator.h"
#include "core/error.h"

namespace ringmark::kvstore {

// A failure that every rank knows of.
class JointError : public Error {
 public:
  using Error::Error;
};

// Collective. Runs `step` on every rank; when it throws Error on some, every rank throws JointError with the code and
// the text of the lowest of them.
void run_joint_step(comm::Communicator& communicator, std::string_view stage, const std::function<void()>& step);

}  // namespace ringmark::kvstore
