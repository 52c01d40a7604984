#include "cluster/prefill/recall_options.h"

#include <fmt/format.h>

#include "cluster/options/option_values.h"
#include "cluster/prefill/policy_options.h"
#include "core/error.h"

namespace ringmark::cluster {

OptionGroup recall_options() {
  OptionGroup group("Recall");
  group.add("recall", "FRACTION",
            "of this share of the queries, above 0 and at most 1, report how much of the exact softmax mass the keys "
            "have that they attend to; costs exact scores of these queries (default: none)");
  return group;
}

std::optional<double> read_recall(const OptionValues& values, std::string_view policy, kernels::Backend backend) {
  const auto fraction = read_positive(values, "recall", 1.0);
  if (!fraction) return std::nullopt;
  const OptionValue* const given = find_value(values, "recall");
  if (!is_sparse_engine_policy(policy)) {
    fail_bad_input(fmt::format("{} = {} has no meaning with --policy {}", given->origin, given->text, policy));
  }
  if (backend != kernels::Backend::kCpu) {
    fail_bad_input(
        fmt::format("{} = {} does not go with --backend {}; limit: cpu", given->origin, given->text, name_of(backend)));
  }
  return fraction;
}

}  // namespace ringmark::cluster
