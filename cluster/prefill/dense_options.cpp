#include "cluster/prefill/dense_options.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <string>

#include "cluster/prefill/policy_options.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

using runtime::dense::Strategy;

// For blocks that are read one by one.
constexpr std::array kForBlocks = {"transport", "kv-budget-mib", "spill-dir"};

}  // namespace

OptionGroup dense_options() {
  OptionGroup group("Only with --policy dense (merge is then auto, ring, pass-q, all-gather, ulysses or ring-ulysses)");
  group.add("ulysses-ranks", "N",
            "ranks that share heads under ring-ulysses, a divisor of the ranks (default: the largest that also "
            "divides the kv heads)");
  return group;
}

DenseOptions read_dense(const OptionValues& values) {
  const OptionValue* const group = find_value(values, "ulysses-ranks");
  refuse_options(values, kForBlocks, "dense");
  DenseOptions options;
  options.strategy = read_choice<Strategy>(values, "merge", runtime::dense::kStrategies, [](Strategy strategy) {
                       return name_of(strategy);
                     }).value_or(options.strategy);
  options.ulysses_ranks =
      read_count(values, "ulysses-ranks", 1, std::numeric_limits<int>::max()).value_or(options.ulysses_ranks);
  if (group != nullptr && options.strategy != Strategy::kRingUlysses) {
    fail_bad_input(fmt::format("{} = {} has no meaning without --merge ring-ulysses", group->origin, group->text));
  }
  return options;
}

}  // namespace ringmark::cluster
