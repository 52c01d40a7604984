#include "cluster/launch/launch_warning.h"

#include <fmt/format.h>

#include <cstdio>

#include "cluster/launch/launch_settings.h"

namespace ringmark::cluster {

void warn_of_settings(const LaunchFacts& facts) {
  for (const SettingFault& fault : find_setting_faults(facts)) {
    fmt::print(stderr, "ringmark: warning: {}: {}; fix: {}\n", fault.found, fault.setting->why, fault.setting->fix);
  }
}

}  // namespace ringmark::cluster
