// The profiles of cluster/planning/profiles as the build has put them into the binary, so that they are found wherever
// it is installed.
#pragma once

#include <array>
#include <string_view>

namespace ringmark::cluster {

struct ShippedProfile {
  std::string_view name;
  std::string_view text;  // of the file
};

inline constexpr std::size_t kShippedProfileCount = 1;
extern const std::array<ShippedProfile, kShippedProfileCount> kShippedProfiles;

}  // namespace ringmark::cluster
