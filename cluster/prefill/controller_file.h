// The state of a threshold controller between runs: a small JSON file that appears whole or not at all
// (docs/formats.md).
#pragma once

#include <string>

#include "comm/communicator.h"
#include "runtime/logo/threshold_controller.h"

namespace ringmark::cluster {

// Collective: as the file on rank 0 says, a new controller where there is none. Throws runtime::AgreedError for a file
// that is not one and for a path that could not be written.
runtime::logo::ThresholdController read_controller(comm::Communicator& ranks, const std::string& path,
                                                   const runtime::logo::ControllerSettings& settings);

// Throws Error(kEnvironment).
void write_controller(const std::string& path, const runtime::logo::ThresholdController& controller);

}  // namespace ringmark::cluster
