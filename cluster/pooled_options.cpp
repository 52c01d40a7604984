#include "cluster/pooled_options.h"

#include <array>

#include "cluster/policy_options.h"

namespace ringmark::cluster {
namespace {

// They keep or reuse what a sparse layer leaves, say how scores are merged, or belong to a GPU.
constexpr std::array kOfOtherEngines = {"merge", "snapshot", "kv-dtype", "reuse", "kernels", "fetch", "share-gpu"};

}  // namespace

void refuse_options_of_other_engines(const OptionValues& values, std::string_view policy) {
  refuse_options(values, kOfOtherEngines, policy);
  refuse_cuda(values, policy);
}

}  // namespace ringmark::cluster
