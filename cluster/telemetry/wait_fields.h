// A wait and a place in a run as JSON, the same in every file and log line.
#pragma once

#include <nlohmann/json.hpp>

#include "comm/current_step.h"
#include "comm/current_wait.h"

namespace ringmark::cluster {

// layer, stage, step {unit, number}: what is known of them.
nlohmann::ordered_json step_fields(const comm::Step& step);

// The fields of the step; wait (of which exchange), peers, waited_seconds, bytes_outstanding where they are known.
nlohmann::ordered_json wait_fields(const comm::WaitNote& wait);

}  // namespace ringmark::cluster
