#include "cluster/doctor/visible_devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "cluster/launch/network_interfaces.h"

namespace ringmark::cluster {
namespace {

std::optional<std::size_t> find_by_number(std::span<const std::string> uuids, const std::string& entry) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
  if (error != std::errc() || end != entry.data() + entry.size() || number >= uuids.size()) return std::nullopt;
  return number;
}

// A beginning counts when it is that of one GPU alone, and more than what all begin with.
std::optional<std::size_t> find_by_uuid(std::span<const std::string> uuids, const std::string& entry) {
  std::optional<std::size_t> found;
  if (entry == "GPU-") return found;
  for (std::size_t number = 0; number < uuids.size(); ++number) {
    if (!uuids[number].starts_with(entry)) continue;
    if (found) return std::nullopt;
    found = number;
  }
  return found;
}

}  // namespace

VisibleDevices visible_devices(std::span<const std::string> uuids, const char* variable) {
  VisibleDevices visible;
  if (variable == nullptr) {
    for (std::size_t number = 0; number < uuids.size(); ++number) visible.numbers.push_back(number);
    return visible;
  }
  for (const std::string& entry : split_list(variable)) {
    const auto number = entry.starts_with("GPU-") ? find_by_uuid(uuids, entry) : find_by_number(uuids, entry);
    if (!number) {
      visible.trouble = fmt::format("CUDA_VISIBLE_DEVICES={}: '{}' is none of the {} GPUs of the host", variable, entry,
                                    uuids.size());
      return visible;
    }
    if (std::ranges::find(visible.numbers, *number) != visible.numbers.end()) {
      return {.numbers = {}, .trouble = fmt::format("CUDA_VISIBLE_DEVICES={}: names a GPU twice", variable)};
    }
    visible.numbers.push_back(*number);
  }
  if (visible.numbers.empty()) visible.trouble = "CUDA_VISIBLE_DEVICES is empty";
  return visible;
}

comm::Uuid uuid_of(const std::string& text) {
  comm::Uuid uuid{};
  std::string digits;
  for (const char c : text.substr(std::min<std::size_t>(4, text.size()))) {
    if (std::isxdigit(static_cast<unsigned char>(c)) != 0) digits += c;
  }
  for (std::size_t i = 0; i < uuid.size() && 2 * i + 1 < digits.size(); ++i) {
    std::from_chars(digits.data() + 2 * i, digits.data() + 2 * i + 2, uuid[i], 16);
  }
  return uuid;
}

}  // namespace ringmark::cluster
