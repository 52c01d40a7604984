// What `ringmark backward` was asked to do: a prefill of a file, and the gradient of its output.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/options/option_layers.h"
#include "cluster/prefill/prefill_options.h"

namespace ringmark::cluster {

// The output is that of the gradients.
struct BackwardOptions : PrefillOptions {
  std::string gradient;                      // file with dL/do
  std::optional<std::int64_t> gradient_mib;  // unset: the default of runtime::BackwardOptions

  // Every key up to the query.
  bool exact() const { return policy.name == "dense"; }
};

// `arguments` stand behind the word backward. Throws Error(kBadInput) in one line naming option, value and limit.
BackwardOptions parse_backward_options(const std::vector<std::string>& arguments, const Environment& environment);

boost::program_options::options_description backward_descriptions();
std::string backward_help();

}  // namespace ringmark::cluster
