#include "cluster/dense_options.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <string>

#include "core/error.h"

namespace ringmark::cluster {
namespace {

using runtime::dense::Strategy;

// They keep, read or check what was chosen; or they belong to a GPU or to transports of blocks.
constexpr std::array kForBlocks = {"topk-chunks", "digest", "snapshot",      "kv-dtype",  "reuse",    "transport",
                                   "kernels",     "fetch",  "kv-budget-mib", "spill-dir", "share-gpu"};

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
  for (const char* name : kForBlocks) {
    const OptionValue* const given = find_value(values, name);
    if (given == nullptr || given->text == "false") continue;
    fail_bad_input(fmt::format("{} = {} has no meaning with --policy dense", given->origin, given->text));
  }
  DenseOptions options;
  options.strategy = read_choice<Strategy>(values, "merge", runtime::dense::kStrategies, [](Strategy strategy) {
                       return name_of(strategy);
                     }).value_or(options.strategy);
  options.ulysses_ranks =
      read_count(values, "ulysses-ranks", 1, std::numeric_limits<int>::max()).value_or(options.ulysses_ranks);
  if (group != nullptr && options.strategy != Strategy::kRingUlysses) {
    fail_bad_input(fmt::format("{} = {} has no meaning without --merge ring-ulysses", group->origin, group->text));
  }
  const OptionValue* const backend = find_value(values, "backend");
  if (backend != nullptr && backend->text == "cuda") {
    fail_bad_input(fmt::format("{} = cuda does not go with --policy dense; limit: cpu or reference", backend->origin));
  }
  return options;
}

}  // namespace ringmark::cluster
