#include "cluster/prefill/nsa_options.h"

#include "cluster/options/option_values.h"

namespace ringmark::cluster {

OptionGroup nsa_options() {
  OptionGroup group("Only with --policy nsa");
  group.add("gates", "X,Y,Z",
            "weights of the compressed, the selected and the window branch (default: the tensor gates of the input; "
            "1/3 each for a planted one)");
  return group;
}

NsaOptions read_nsa(const OptionValues& values) {
  NsaOptions options;
  const auto gates = read_fractions(values, "gates", 3);
  if (!gates) return options;
  options.gates.emplace();
  for (std::size_t i = 0; i < options.gates->size(); ++i) (*options.gates)[i] = static_cast<float>((*gates)[i]);
  return options;
}

}  // namespace ringmark::cluster
