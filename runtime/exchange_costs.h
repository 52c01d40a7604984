// What a pull and a push cost here: a short measurement at the start of a job.
#pragma once

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "runtime/decode_plan.h"
#include "runtime/kept_layer.h"

namespace ringmark::runtime {

// Collective; the same on every rank: those of the slowest. The arenas of `layer` are read, whatever they hold. Zero
// with one rank.
ExchangeCosts measure_exchange_costs(comm::Communicator& communicator, comm::BlockTransport& transport,
                                     const KeptLayer& layer);

}  // namespace ringmark::runtime
