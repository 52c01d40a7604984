#include "cluster/options/option_layers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/program_options/errors.hpp>
#include <boost/program_options/parsers.hpp>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>
#include <utility>

#include "core/error.h"

namespace ringmark::cluster {
namespace {

namespace po = boost::program_options;

constexpr std::string_view kVariablePrefix = "RINGMARK_";

std::vector<std::string> long_names(const po::options_description& known) {
  std::vector<std::string> names;
  for (const auto& option : known.options()) names.push_back(option->long_name());
  return names;
}

bool is_switch(const po::options_description& known, const std::string& name) {
  return known.find(name, false).semantic()->max_tokens() == 0;
}

std::string variable_name(const std::string& option) {
  std::string name(kVariablePrefix);
  for (const char c : option) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::string switch_text(const std::string& text, const std::string& origin) {
  for (const char* on : {"true", "1", "yes", "on"}) {
    if (text == on) return "true";
  }
  for (const char* off : {"false", "0", "no", "off"}) {
    if (text == off) return "false";
  }
  fail_bad_input(fmt::format("{} = {} is not one of true, false, 1, 0, yes, no, on, off", origin, text));
}

void add(OptionValues& layer, const std::string& name, OptionValue value) {
  const auto [place, added] = layer.emplace(name, value);
  if (!added) fail_bad_input(fmt::format("{} is given twice: {} and {}", value.origin, place->second.text, value.text));
}

OptionValues read_flags(const po::options_description& known, const std::vector<std::string>& arguments) {
  // Abbreviated flags would change their meaning when a flag is added.
  const int style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
  OptionValues layer;
  try {
    const auto parsed = po::command_line_parser(arguments).options(known).style(style).allow_unregistered().run();
    for (const auto& option : parsed.options) {
      const std::string typed = option.original_tokens.empty() ? "" : option.original_tokens.front();
      if (option.position_key >= 0) fail_bad_input(fmt::format("argument '{}' belongs to no flag", typed));
      if (option.unregistered) {
        const std::string flag = typed.substr(0, typed.find('='));
        const std::string bare = flag.substr(std::min(flag.size(), flag.find_first_not_of('-')));
        fail_bad_input(fmt::format("unknown flag {}{}", flag, suggestion(bare, long_names(known), "--")));
      }
      const std::string origin = "--" + option.string_key;
      // A flag that stands where a value should: `--input=--name` is the way to write a name that begins so.
      if (option.original_tokens.size() > 1 && option.value.front().starts_with("--")) {
        fail_bad_input(fmt::format("{} has no value: {} follows", origin, option.value.front()));
      }
      add(layer, option.string_key, {option.value.empty() ? "true" : option.value.front(), origin});
    }
  } catch (const po::error& error) {
    fail_bad_input(error.what());
  }
  return layer;
}

OptionValues read_variables(const po::options_description& known, const Environment& environment) {
  std::map<std::string, std::string> option_of;
  std::vector<std::string> endings;  // compared without the prefix, which would make every variable look alike
  for (const std::string& name : long_names(known)) {
    if (name == "help") continue;
    option_of[variable_name(name)] = name;
    endings.push_back(variable_name(name).substr(kVariablePrefix.size()));
  }
  OptionValues layer;
  for (const auto& [variable, text] : environment) {
    if (!variable.starts_with(kVariablePrefix)) continue;
    const auto option = option_of.find(variable);
    if (option == option_of.end()) {
      fail_bad_input(fmt::format("unknown environment variable {}{}", variable,
                                 suggestion(variable.substr(kVariablePrefix.size()), endings, kVariablePrefix)));
    }
    const bool flips = is_switch(known, option->second);
    add(layer, option->second, {flips ? switch_text(text, variable) : text, variable});
  }
  return layer;
}

OptionValues read_config_file(const po::options_description& known, const std::string& path) {
  std::ifstream file(path);
  if (!file) fail_bad_input(fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
  std::vector<std::string> keys = long_names(known);
  std::erase_if(keys, [](const std::string& key) { return key == "help" || key == "config"; });
  OptionValues layer;
  std::string line;
  // One line at a time, because the library's errors do not carry a line number.
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string where = fmt::format("{}:{}", path, number);
    if (line.find_first_not_of(" \t") != std::string::npos && line[line.find_first_not_of(" \t")] == '[') {
      fail_bad_input(where + ": sections are not supported, only key = value");
    }
    std::istringstream text(line);
    try {
      for (const auto& option : po::parse_config_file(text, known, true).options) {
        const std::string& key = option.string_key;
        if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
          fail_bad_input(fmt::format("{}: unknown key {}{}", where, key, suggestion(key, keys)));
        }
        const std::string origin = fmt::format("{}: {}", where, key);
        const std::string value = option.value.empty() ? "" : option.value.front();
        add(layer, key, {is_switch(known, key) ? switch_text(value, origin) : value, origin});
      }
    } catch (const po::error&) {
      fail_bad_input(fmt::format("{}: '{}' is not key = value", where, line));
    }
  }
  if (file.bad()) fail_bad_input(fmt::format("{}: cannot read: {}", path, std::strerror(errno)));
  return layer;
}

}  // namespace

Environment ringmark_environment() {
  Environment found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable = *entry;
    const std::size_t equals = variable.find('=');
    if (!variable.starts_with(kVariablePrefix) || equals == std::string_view::npos) continue;
    found.emplace(variable.substr(0, equals), variable.substr(equals + 1));
  }
  return found;
}

Environment without_others(Environment environment, const po::options_description& own,
                           const po::options_description& others) {
  for (const std::string& name : long_names(others)) {
    if (own.find_nothrow(name, false) == nullptr) environment.erase(variable_name(name));
  }
  return environment;
}

OptionValues read_option_layers(const po::options_description& known, const std::vector<std::string>& arguments,
                                const Environment& environment) {
  OptionValues values = read_flags(known, arguments);
  values.merge(read_variables(known, environment));  // merge keeps what is there
  if (const auto config = values.find("config"); config != values.end()) {
    values.merge(read_config_file(known, config->second.text));
  }
  return values;
}

std::string nearest_name(std::string_view typed, const std::vector<std::string>& known) {
  // Optimal string alignment: insertions, deletions, replacements and swapped neighbours count one each.
  const auto distance = [&](std::string_view name) {
    std::vector<std::size_t> before;
    std::vector<std::size_t> above(name.size() + 1);
    std::iota(above.begin(), above.end(), std::size_t{0});
    for (std::size_t i = 1; i <= typed.size(); ++i) {
      std::vector<std::size_t> row(name.size() + 1, i);
      for (std::size_t j = 1; j <= name.size(); ++j) {
        const std::size_t replace = above[j - 1] + (typed[i - 1] == name[j - 1] ? 0 : 1);
        row[j] = std::min({replace, above[j] + 1, row[j - 1] + 1});
        const bool swapped = i > 1 && j > 1 && typed[i - 1] == name[j - 2] && typed[i - 2] == name[j - 1];
        if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
      }
      before = std::exchange(above, std::move(row));
    }
    return above.back();
  };
  std::string nearest;
  std::size_t least = std::max<std::size_t>(2, typed.size() / 3) + 1;
  for (const std::string& name : known) {
    const std::size_t edits = distance(name);
    if (edits < least && edits < name.size()) {
      least = edits;
      nearest = name;
    }
  }
  return nearest;
}

std::string suggestion(std::string_view typed, const std::vector<std::string>& known, std::string_view prefix) {
  const std::string nearest = nearest_name(typed, known);
  return nearest.empty() ? "" : fmt::format("; did you mean {}{}?", prefix, nearest);
}

}  // namespace ringmark::cluster
