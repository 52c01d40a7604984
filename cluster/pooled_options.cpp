#include "cluster/pooled_options.h"

#include <fmt/format.h>

#include <array>

#include "core/error.h"

namespace ringmark::cluster {
namespace {

// They keep or reuse what a sparse layer leaves, say how scores are merged, or belong to a GPU.
constexpr std::array kOfOtherEngines = {"merge", "snapshot", "kv-dtype", "reuse", "kernels", "fetch", "share-gpu"};

}  // namespace

void refuse_options_of_other_engines(const OptionValues& values, std::string_view policy) {
  for (const char* name : kOfOtherEngines) {
    const OptionValue* const given = find_value(values, name);
    if (given == nullptr || given->text == "false") continue;
    fail_bad_input(fmt::format("{} = {} has no meaning with --policy {}", given->origin, given->text, policy));
  }
  const OptionValue* const backend = find_value(values, "backend");
  if (backend != nullptr && backend->text == "cuda") {
    fail_bad_input(
        fmt::format("{} = cuda does not go with --policy {}; limit: cpu or reference", backend->origin, policy));
  }
}

}  // namespace ringmark::cluster
