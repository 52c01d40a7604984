// The environment variables that decide whether and how fast a job runs: what is wanted of each, why, and what to type.
// One table: a job looks at it before it starts, `ringmark doctor` prints it, ringmark_env.sh sets what it can.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/launch/launch_facts.h"

namespace ringmark::cluster {

enum class Harm {
  kFails,  // the job would not start, or not find its peers
  kSlows,  // it would run slowly, or stand still where it should end
};

struct LaunchSetting {
  std::string_view name;
  std::string_view wanted;  // in words
  std::string_view why;
  std::string_view fix;  // to type
  Harm harm;
  // What is set otherwise than wanted; empty when it is fine, or does not matter to this job.
  std::string (*fault)(const LaunchFacts& facts);
};

std::span<const LaunchSetting> launch_settings();

struct SettingFault {
  const LaunchSetting* setting = nullptr;  // in the table
  std::string found;
};

std::vector<SettingFault> find_setting_faults(const LaunchFacts& facts);

}  // namespace ringmark::cluster
