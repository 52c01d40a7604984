#include "cluster/prefill/dilated_options.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "cluster/options/size_text.h"
#include "cluster/prefill/policy_options.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

// "2k:4".
std::optional<kernels::Dilation> parse_pair(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto segment = parse_count(text.substr(0, colon));
  const auto rate = parse_count(text.substr(colon + 1));
  if (!segment || !rate) return std::nullopt;
  return kernels::Dilation{*segment, *rate};
}

}  // namespace

OptionGroup dilated_options() {
  OptionGroup group("Only with --policy dilated");
  group.add("dilation", "W:R,...",
            "pairs of a segment's tokens and its rate: of W tokens a head sees every R-th (no default)");
  return group;
}

DilatedOptions read_dilated(const OptionValues& values) {
  const OptionValue* const given = find_value(values, "dilation");
  if (given == nullptr) fail_bad_input("--policy dilated needs --dilation W:R,...");
  DilatedOptions options;
  std::string_view rest = given->text;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const auto pair = parse_pair(rest.substr(0, comma));
    if (!pair) {
      fail_bad_input(fmt::format("{} = {} is not a list of pairs W:R: entry {} is '{}'", given->origin, given->text,
                                 options.dilations.size(), rest.substr(0, comma)));
    }
    options.dilations.push_back(*pair);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  kernels::validate(options.dilations);
  return options;
}

}  // namespace ringmark::cluster
