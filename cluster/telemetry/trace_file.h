// --trace: what happened when on all ranks, in one file of rank 0, in the JSON that chrome://tracing and Perfetto read.
//
// A process is a rank, a thread one of its lanes. A batch of block reads is an asynchronous event of the rank that
// reads (reads overlap each other and the stages), and an arrow from the owner to the reader: from when the blocks were
// asked for to when they were there. Times are microseconds of rank 0's clock from the first event on; otherData
// says by how much each clock was put right and how wrong that may be.
#pragma once

#include <string>

#include "cluster/telemetry/clock_alignment.h"
#include "comm/communicator.h"
#include "runtime/trace.h"

namespace ringmark::cluster {

// The events of one rank, one a line, each line ending in a comma. `process` is its name.
std::string trace_events(const runtime::Trace& trace, const ClockAlignment& clock, int rank, const std::string& process,
                         double origin_us);

// The first aligned time of a trace; a large one when it is empty.
double first_event_us(const runtime::Trace& trace, const ClockAlignment& clock);

// Collective. `other` is the JSON object of what else the file says of itself.
void write_trace(comm::Communicator& ranks, const runtime::Trace& trace, const ClockAlignment& clock,
                 const std::string& process, const std::string& version, const std::string& path);

}  // namespace ringmark::cluster
