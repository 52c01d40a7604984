#include "cluster/options/layer_choices.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>

#include "core/error.h"
#include "core/problem.h"

namespace ringmark::cluster {
namespace {

constexpr std::int64_t kMaxHeads = 4096;
constexpr std::array kBalances = {partition::Balance::kContiguous, partition::Balance::kZigzag,
                                  partition::Balance::kRotate};
constexpr std::array kMerges = {runtime::Merge::kAuto, runtime::Merge::kScores, runtime::Merge::kLandmarks};
constexpr std::array kFetches = {runtime::Fetch::kAuto, runtime::Fetch::kBlocks, runtime::Fetch::kStream};
constexpr std::array kDTypes = {DType::kBfloat16, DType::kFloat16, DType::kFloat32};
constexpr auto kTextOf = [](auto choice) { return name_of(choice); };

}  // namespace

std::optional<partition::Balance> read_balance(const OptionValues& values) {
  return read_choice<partition::Balance>(values, "balance", kBalances, kTextOf);
}

std::optional<runtime::Merge> read_merge(const OptionValues& values) {
  return read_choice<runtime::Merge>(values, "merge", kMerges, kTextOf);
}

std::optional<runtime::Fetch> read_fetch(const OptionValues& values) {
  return read_choice<runtime::Fetch>(values, "fetch", kFetches, kTextOf);
}

HeadShape read_head_shape(const OptionValues& values, const HeadShape& usual) {
  HeadShape shape;
  shape.heads = read_count(values, "heads", 1, kMaxHeads).value_or(usual.heads);
  shape.kv_heads = read_count(values, "kv-heads", 1, kMaxHeads).value_or(usual.kv_heads);
  shape.head_dim = read_count(values, "head-dim", 1, kMaxHeadDim).value_or(usual.head_dim);
  shape.dtype = read_choice<DType>(values, "dtype", kDTypes, kTextOf).value_or(usual.dtype);
  if (shape.heads % shape.kv_heads != 0) {
    fail_bad_input(fmt::format("heads = {} is not a multiple of kv-heads = {}", shape.heads, shape.kv_heads));
  }
  return shape;
}

}  // namespace ringmark::cluster
