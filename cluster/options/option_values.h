// Values of options as numbers and choices. Each function returns nothing when the option was not given, and throws
// Error(kBadInput) naming origin, value and limit when its text is not a value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

const OptionValue* find_value(const OptionValues& values, const std::string& name);

// Not empty when given.
std::string read_text(const OptionValues& values, const std::string& name);
bool read_switch(const OptionValues& values, const std::string& name);
// A whole number in [low, high], suffixes k, m and g allowed.
std::optional<std::int64_t> read_count(const OptionValues& values, const std::string& name, std::int64_t low,
                                       std::int64_t high);
std::optional<std::uint64_t> read_seed(const OptionValues& values, const std::string& name);
// A finite number in [low, high].
std::optional<double> read_real(const OptionValues& values, const std::string& name, double low, double high);
// A finite number above 0 and at most `high`.
std::optional<double> read_positive(const OptionValues& values, const std::string& name, double high);
// A number in [0, 1].
std::optional<double> read_fraction(const OptionValues& values, const std::string& name);
// So many numbers in [0, 1], separated by commas.
std::optional<std::vector<double>> read_fractions(const OptionValues& values, const std::string& name,
                                                  std::size_t count);
// Whole numbers >= 0, separated by commas.
std::optional<std::vector<std::int64_t>> read_counts(const OptionValues& values, const std::string& name);

// Index of the value's text in `choices`.
std::optional<std::size_t> read_choice_index(const OptionValues& values, const std::string& name,
                                             std::span<const std::string> choices);

// One of the enumerators, each written as `text_of` writes it.
template <class Choice, class TextOf>
std::optional<Choice> read_choice(const OptionValues& values, const std::string& name, std::span<const Choice> choices,
                                  TextOf text_of) {
  std::vector<std::string> texts;
  for (const Choice choice : choices) texts.emplace_back(text_of(choice));
  const auto index = read_choice_index(values, name, texts);
  if (!index) return std::nullopt;
  return choices[*index];
}

}  // namespace ringmark::cluster
