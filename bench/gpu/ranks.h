// The frame of a benchmark of any number of ranks: alone, or as a job of mpirun.
#pragma once

#include <functional>
#include <string_view>

#include "comm/communicator.h"

namespace ringmark::bench {

// `body` says whether every answer was right, the same on all ranks. Returns the exit code of this process; an error
// ends all ranks, with one line that begins with the program's name.
int run_on_ranks(std::string_view program, const std::function<bool(comm::Communicator&)>& body);

}  // namespace ringmark::bench
