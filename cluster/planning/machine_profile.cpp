#include "cluster/planning/machine_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "cluster/options/option_layers.h"
#include "cluster/options/text_file.h"
#include "cluster/planning/shipped_profiles.h"
#include "core/error.h"

namespace ringmark::cluster {

std::string_view name_of(LinkClass link) {
  switch (link) {
    case LinkClass::kHost: return "host";
    case LinkClass::kNvlink: return "nvlink";
    case LinkClass::kFabric: return "fabric";
  }
  return "?";
}

double MachineProfile::slowdown(int ranks_on_node) const {
  if (cores_per_node == 0) return 1.0;
  return std::max(1.0, static_cast<double>(ranks_on_node) * threads / cores_per_node);
}

std::int64_t MachineProfile::memory_of_rank(int ranks_on_node) const {
  return backend == "cuda" ? memory_bytes : memory_bytes / std::max(1, ranks_on_node);
}

MachineProfile read_profile(const std::string& path) {
  constexpr std::uintmax_t kMaxBytes = 1 << 20;
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) fail_bad_input(fmt::format("profile {} cannot be read: {}", path, error.message()));
  if (bytes > kMaxBytes) fail_bad_input(fmt::format("profile {} has {} bytes; limit: {}", path, bytes, kMaxBytes));
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) fail_bad_input(fmt::format("profile {} cannot be read: {}", path, std::strerror(errno)));
  return parse_profile(text, path);
}

std::vector<std::string> shipped_profiles() {
  std::vector<std::string> names;
  for (const ShippedProfile& profile : kShippedProfiles) names.emplace_back(profile.name);
  return names;
}

MachineProfile find_profile(const std::string& name_or_path) {
  for (const ShippedProfile& profile : kShippedProfiles) {
    if (name_or_path == profile.name) return parse_profile(std::string(profile.text), std::string(profile.name));
  }
  if (std::filesystem::exists(name_or_path)) return read_profile(name_or_path);
  std::string shipped;
  for (const ShippedProfile& profile : kShippedProfiles) shipped += fmt::format(" {}", profile.name);
  fail_bad_input(fmt::format("profile = {} is no file and no shipped profile; shipped:{}{}", name_or_path, shipped,
                             suggestion(name_or_path, shipped_profiles())));
}

void write_profile(const MachineProfile& profile, const std::string& path) {
  write_text_file(path, profile_text(profile));
}

}  // namespace ringmark::cluster
