#include "cluster/prefill/compressive_options.h"

#include <fmt/format.h>

#include <array>

#include "cluster/options/option_values.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

constexpr std::int64_t kMaxSlots = std::int64_t{1} << 40;

}  // namespace

OptionGroup compressive_options() {
  const CompressivePolicy defaults;
  OptionGroup group("Only with --policy compressive");
  group
      .add("compressed-slots", "N",
           fmt::format("groups before the memory that are attended as their means (default: {})", defaults.slots))
      .add("compression-rate", "TOKENS",
           fmt::format("tokens of a group; divides segment, memory and chunk (default: {})", defaults.rate));
  return group;
}

CompressivePolicy read_compressive(const OptionValues& values) {
  CompressivePolicy policy;
  const auto segment = read_count(values, "segment", 1, kMaxSlots);
  if (!segment) fail_bad_input("--policy compressive needs --segment TOKENS");
  policy.segment = *segment;
  policy.slots = read_count(values, "compressed-slots", 0, kMaxSlots).value_or(policy.slots);
  policy.rate = read_count(values, "compression-rate", 1, kMaxChunkSize).value_or(policy.rate);
  return policy;
}

}  // namespace ringmark::cluster
