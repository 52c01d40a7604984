// Where an option's value comes from: flag, else environment variable RINGMARK_NAME, else `name = value` in the file
// given by --config, else nothing (the default is the caller's). Each value keeps its origin, so that an error names
// the place to correct. Boost.Program_options does the parsing; this file adds the order, the strictness and the
// suggestions.
#pragma once

#include <boost/program_options/options_description.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringmark::cluster {

struct OptionValue {
  std::string text;    // "true" or "false" for a switch
  std::string origin;  // "--topk", "RINGMARK_TOPK" or "run.conf:3: topk"
};

using OptionValues = std::map<std::string, OptionValue>;  // by long name
using Environment = std::map<std::string, std::string>;   // variables by name

// The variables of this process whose name begins with RINGMARK_.
Environment ringmark_environment();

// Without the variables that name an option of `others` and none of `own`: all commands share one environment.
Environment without_others(Environment environment, const boost::program_options::options_description& own,
                           const boost::program_options::options_description& others);

// Values of the options in `known`, from all layers. All options are strings or switches (bool_switch). "help" counts
// on the command line only, "config" everywhere but in the file itself. Throws Error(kBadInput) in one line for an
// unknown flag, variable or key (with the nearest known name), a missing value, an option given twice in one layer, and
// a file that cannot be read.
OptionValues read_option_layers(const boost::program_options::options_description& known,
                                const std::vector<std::string>& arguments, const Environment& environment);

// The name that `typed` was probably meant to be; empty when none is near.
std::string nearest_name(std::string_view typed, const std::vector<std::string>& known);

// "; did you mean NAME?" with the nearest name behind `prefix`, or nothing.
std::string suggestion(std::string_view typed, const std::vector<std::string>& known, std::string_view prefix = "");

}  // namespace ringmark::cluster
