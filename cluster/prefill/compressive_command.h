// ringmark prefill --policy compressive: attention of one layer with a compressive memory.
#pragma once

#include "cluster/prefill/prefill_options.h"
#include "cluster/telemetry/telemetry.h"
#include "comm/communicator.h"

namespace ringmark::cluster {

// Collective.
void run_compressive(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry);

}  // namespace ringmark::cluster
