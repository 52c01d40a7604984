// In what a point ran, for its result: only what is named here, never the whole environment.
#pragma once

#include <nlohmann/json.hpp>

#include "cluster/scaling/launch_command.h"

namespace ringmark::cluster {

nlohmann::ordered_json run_environment(const Launch& launch, const PointLaunch& started);

}  // namespace ringmark::cluster
