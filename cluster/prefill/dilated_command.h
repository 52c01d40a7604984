// ringmark prefill --policy dilated: dilated attention of one layer.
#pragma once

#include "cluster/prefill/prefill_options.h"
#include "cluster/telemetry/telemetry.h"
#include "comm/communicator.h"

namespace ringmark::cluster {

// Collective.
void run_dilated(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry);

}  // namespace ringmark::cluster
