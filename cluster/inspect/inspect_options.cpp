#include "cluster/inspect/inspect_options.h"

#include <algorithm>
#include <boost/program_options/options_description.hpp>
#include <sstream>
#include <string_view>

#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

namespace po = boost::program_options;

constexpr std::string_view kHelpHead =
    R"(ringmark inspect PATH: what is in a snapshot's folder (the newest complete generation) or in a safetensors file;
what the ranks of a job left in its --log-dir, and for whom they all wait.

  ringmark inspect kept/ --verify
  ringmark inspect layer.safetensors
  ringmark inspect logs/

Values come from flags, else from environment variables (--json is RINGMARK_JSON), else from the --config file.
Exit codes: 0 done, 2 usage, or a file that is missing, malformed or damaged: the line names it.
)";

// The first argument that is neither a flag nor the value of one.
std::vector<std::string>::iterator find_path(std::vector<std::string>& arguments) {
  bool is_value = false;
  return std::find_if(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    const bool is_path = !is_value && !argument.starts_with("-");
    is_value = argument == "--json" || argument == "--config";
    return is_path;
  });
}

}  // namespace

InspectOptions parse_inspect_options(std::vector<std::string> arguments, const Environment& environment) {
  InspectOptions options;
  const auto path = find_path(arguments);
  if (path == arguments.end()) fail_bad_input("no folder and no file to inspect is given; see ringmark inspect --help");
  options.path = *path;
  if (options.path.empty()) fail_bad_input("the path to inspect is empty");
  arguments.erase(path);
  const OptionValues values = read_option_layers(inspect_descriptions(), arguments, environment);
  options.verify = read_switch(values, "verify");
  options.json = read_text(values, "json");
  return options;
}

po::options_description inspect_descriptions() {
  OptionGroup group("Options");
  group.add_switch("verify", "read everything and compare all checksums")
      .add("json", "FILE", "write what is printed as JSON (default: none)")
      .add("config", "FILE", "read options from lines of the form key = value, # begins a comment")
      .add_switch("help", "print this text");
  return group.options();
}

std::string inspect_help() {
  std::ostringstream text;
  text << kHelpHead << "\n" << inspect_descriptions();
  return text.str();
}

}  // namespace ringmark::cluster
