// The one error type of Ringmark. Its code is the exit status of the process; its text is one line that names the
// field, the value and the limit (bad input), the number that was needed (environment), or rank, stage and peer (peer).
// Thrown once, where the fact is known; caught once, in the command that ends the job.
#pragma once

#include <stdexcept>
#include <string>

namespace ringmark {

enum class ExitCode : int {
  kOk = 0,
  kBadInput = 2,     // usage, malformed file, impossible shape: nothing was allocated or written
  kEnvironment = 3,  // no memory, no such device, MPI launched in a way that cannot work
  kPeer = 4,         // a peer failed or a deadline passed
  kInternal = 70,    // a promise of this library was broken: a bug
  kRequeue = 75,     // checkpointed, to be requeued
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

[[noreturn]] inline void fail_bad_input(const std::string& text) { throw Error(ExitCode::kBadInput, text); }
[[noreturn]] inline void fail_environment(const std::string& text) { throw Error(ExitCode::kEnvironment, text); }
[[noreturn]] inline void fail_peer(const std::string& text) { throw Error(ExitCode::kPeer, text); }

// For promises between our own functions: a failure here is a bug in Ringmark, not in its input.
inline void require(bool holds, const char* promise) {
  if (!holds) throw Error(ExitCode::kInternal, std::string("internal error: broken promise: ") + promise);
}

}  // namespace ringmark
