#include "kvstore/snapshot_generations.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>

#include "core/error.h"

namespace ringmark::kvstore {
namespace {

constexpr std::string_view kPrefix = "generation-";

std::optional<std::uint64_t> generation_of(const std::string& name) {
  std::uint64_t number = 0;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), number);
  // Only the one spelling that generation_name() writes.
  if (number == 0 || generation_name(number) != name) return std::nullopt;
  return number;
}

}  // namespace

std::string generation_name(std::uint64_t generation) { return fmt::format("{}{:06d}", kPrefix, generation); }

std::vector<std::uint64_t> list_generations(const std::filesystem::path& folder) {
  std::vector<std::uint64_t> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto generation = generation_of(entry->path().filename().string());
    // A link is nothing that this program made.
    if (generation && entry->symlink_status().type() == std::filesystem::file_type::directory) {
      found.push_back(*generation);
    }
  }
  if (error) fail_bad_input(fmt::format("{}: cannot read the folder: {}", folder.string(), error.message()));
  std::sort(found.begin(), found.end(), std::greater<>());
  return found;
}

}  // namespace ringmark::kvstore
