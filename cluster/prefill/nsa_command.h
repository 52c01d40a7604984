// ringmark prefill --policy nsa: native sparse attention of one layer.
#pragma once

#include "cluster/prefill/prefill_options.h"
#include "cluster/telemetry/telemetry.h"
#include "comm/communicator.h"

namespace ringmark::cluster {

// Collective.
void run_nsa(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry);

}  // namespace ringmark::cluster
