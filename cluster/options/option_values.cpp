#include "cluster/options/option_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "cluster/options/size_text.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

[[noreturn]] void refuse(const OptionValue& value, std::string_view expected) {
  fail_bad_input(fmt::format("{} = {} is not {}", value.origin, value.text, expected));
}

// The whole text as a number; nothing when it is none, also for "nan" and "inf".
std::optional<double> parse_real(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end || !std::isfinite(number)) return std::nullopt;
  return number;
}

// What stands between the commas.
std::vector<std::string> entries_of(const std::string& text) {
  std::vector<std::string> entries(1);
  for (const char letter : text) {
    if (letter == ',') {
      entries.emplace_back();
    } else {
      entries.back() += letter;
    }
  }
  return entries;
}

}  // namespace

const OptionValue* find_value(const OptionValues& values, const std::string& name) {
  const auto found = values.find(name);
  return found == values.end() ? nullptr : &found->second;
}

std::string read_text(const OptionValues& values, const std::string& name) {
  const OptionValue* const value = find_value(values, name);
  if (value == nullptr) return "";
  if (value->text.empty()) fail_bad_input(fmt::format("{} is empty", value->origin));
  return value->text;
}

bool read_switch(const OptionValues& values, const std::string& name) {
  const OptionValue* const value = find_value(values, name);
  return value != nullptr && value->text == "true";
}

std::optional<std::int64_t> read_count(const OptionValues& values, const std::string& name, std::int64_t low,
                                       std::int64_t high) {
  const OptionValue* const value = find_value(values, name);
  if (value == nullptr) return std::nullopt;
  const auto count = parse_count(value->text);
  if (!count || *count < low || *count > high) refuse(*value, fmt::format("a whole number in [{}, {}]", low, high));
  return count;
}

std::optional<std::uint64_t> read_seed(const OptionValues& values, const std::string& name) {
  const OptionValue* const value = find_value(values, name);
  if (value == nullptr) return std::nullopt;
  std::uint64_t seed = 0;
  const char* const end = value->text.data() + value->text.size();
  const auto [rest, error] = std::from_chars(value->text.data(), end, seed);
  if (error != std::errc() || rest != end) {
    refuse(*value, fmt::format("a whole number in [0, {}]", std::numeric_limits<std::uint64_t>::max()));
  }
  return seed;
}

std::optional<double> read_real(const OptionValues& values, const std::string& name, double low, double high) {
  const OptionValue* const value = find_value(values, name);
  if (value == nullptr) return std::nullopt;
  const auto number = parse_real(value->text);
  if (!number || *number < low || *number > high) refuse(*value, fmt::format("a number in [{}, {}]", low, high));
  return number;
}

std::optional<double> read_positive(const OptionValues& values, const std::string& name, double high) {
  const OptionValue* const value = find_value(values, name);
  if (value == nullptr) return std::nullopt;
  const auto number = parse_real(value->text);
  if (!number || *number <= 0 || *number > high) refuse(*value, fmt::format("a number above 0 and at most {}", high));
  return number;
}

std::optional<double> read_fraction(const OptionValues& values, const std::string& name) {
  const OptionValue* const value = find_value(values, name);
  if (value == nullptr) return std::nullopt;
  const auto number = parse_real(value->text);
  if (!number || *number < 0 || *number > 1) refuse(*value, "a number in [0, 1]");
  return number;
}

std::optional<std::vector<double>> read_fractions(const OptionValues& values, const std::string& name,
                                                  std::size_t count) {
  const OptionValue* const value = find_value(values, name);
  if (value == nullptr) return std::nullopt;
  std::vector<double> fractions;
  for (const std::string& entry : entries_of(value->text)) {
    const auto number = parse_real(entry);
    if (number && *number >= 0 && *number <= 1) fractions.push_back(*number);
  }
  if (fractions.size() != count || entries_of(value->text).size() != count) {
    refuse(*value, fmt::format("a list of {} numbers in [0, 1]", count));
  }
  return fractions;
}

std::optional<std::vector<std::int64_t>> read_counts(const OptionValues& values, const std::string& name) {
  const OptionValue* const value = find_value(values, name);
  if (value == nullptr) return std::nullopt;
  std::vector<std::int64_t> counts;
  for (const std::string& entry : entries_of(value->text)) {
    const auto count = parse_count(entry);
    if (!count) refuse(*value, fmt::format("a list of whole numbers: entry {} is '{}'", counts.size(), entry));
    counts.push_back(*count);
  }
  return counts;
}

std::optional<std::size_t> read_choice_index(const OptionValues& values, const std::string& name,
                                             std::span<const std::string> choices) {
  const OptionValue* const value = find_value(values, name);
  if (value == nullptr) return std::nullopt;
  const auto found = std::find(choices.begin(), choices.end(), value->text);
  if (found != choices.end()) return static_cast<std::size_t>(found - choices.begin());
  std::string expected = "one of";
  for (const std::string& choice : choices) expected += (&choice == &choices.front() ? " " : ", ") + choice;
  refuse(*value, expected);
}

}  // namespace ringmark::cluster
