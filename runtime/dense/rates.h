// What links and cores give here, for the cost model: a short measurement at the start of a job.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "runtime/dense/cost_model.h"

namespace ringmark::runtime::dense {

// Collective; the same on every rank: those of the slowest. All ranks exchange with their neighbours at once.
Rates measure_rates(comm::Communicator& communicator, int threads, std::int64_t fetch_budget);

}  // namespace ringmark::runtime::dense
