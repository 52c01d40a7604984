// Seconds of the stages of a run, as the report shows them.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "runtime/stage_clock.h"

namespace ringmark::cluster {

using StageSeconds = std::vector<std::pair<std::string, double>>;

// Collective: of every stage, and of their sum as "total", the time of the slowest rank. Every rank names the same
// stages; one that a rank did not enter took it no time.
StageSeconds slowest(comm::Communicator& ranks, std::span<const std::string> stages,
                     std::span<const runtime::StageClock* const> clocks);

// "load 0.205, window 0.118".
std::string seconds_text(const StageSeconds& seconds);

}  // namespace ringmark::cluster
