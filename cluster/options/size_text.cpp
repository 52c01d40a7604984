#include "cluster/options/size_text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

namespace ringmark::cluster {
namespace {

// log2 of the suffix; nothing for an unknown one.
std::optional<int> suffix_bits(std::string_view suffix) {
  if (suffix.empty()) return 0;
  if (suffix == "k" || suffix == "K") return 10;
  if (suffix == "m" || suffix == "M") return 20;
  if (suffix == "g" || suffix == "G") return 30;
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> parse_count(std::string_view text) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  std::int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  const auto bits = suffix_bits(text.substr(static_cast<std::size_t>(rest - text.data())));
  if (!bits || __builtin_mul_overflow(value, std::int64_t{1} << *bits, &value)) return std::nullopt;
  return value;
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.95 would be printed as 1024.0.
  while (std::fabs(value) >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace ringmark::cluster
