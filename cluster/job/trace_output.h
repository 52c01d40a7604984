// --trace: what happened when on all ranks, in one file of rank 0.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "runtime/trace.h"

namespace ringmark::cluster {

// Collective.
void write_trace(comm::Communicator& ranks, const runtime::Trace& trace, const std::string& path);

}  // namespace ringmark::cluster
