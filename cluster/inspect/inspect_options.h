// What `ringmark inspect` was asked to do.
#pragma once

#include <string>
#include <vector>

#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

struct InspectOptions {
  std::string path;     // a snapshot's folder or a safetensors file
  bool verify = false;  // read everything
  std::string json;     // empty: none
};

// `arguments` stand behind the word inspect. Throws Error(kBadInput) in one line.
InspectOptions parse_inspect_options(std::vector<std::string> arguments, const Environment& environment);

boost::program_options::options_description inspect_descriptions();
std::string inspect_help();

}  // namespace ringmark::cluster
