// Options that several commands have, with one meaning and one set of values: the heads of a layer that is made or
// imagined, and how a layer is dealt, merged and fetched. Each function returns nothing when the option was not given.
#pragma once

#include <cstdint>
#include <optional>

#include "cluster/options/option_values.h"
#include "core/dtype.h"
#include "partition/layout.h"
#include "runtime/fetch_strategy.h"
#include "runtime/merge_strategy.h"

namespace ringmark::cluster {

std::optional<partition::Balance> read_balance(const OptionValues& values);
std::optional<runtime::Merge> read_merge(const OptionValues& values);
std::optional<runtime::Fetch> read_fetch(const OptionValues& values);

struct HeadShape {
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  DType dtype = DType::kBfloat16;
};
// What of heads, kv-heads, head-dim and dtype is not given is as in `usual`. Throws Error(kBadInput) when kv-heads does
// not divide heads.
HeadShape read_head_shape(const OptionValues& values, const HeadShape& usual);

// Of a problem or of what a layer is planted from: anything that has these four.
template <class Layer>
void read_head_shape_into(const OptionValues& values, Layer& layer) {
  const HeadShape shape = read_head_shape(values, {layer.heads, layer.kv_heads, layer.head_dim, layer.dtype});
  layer.heads = shape.heads;
  layer.kv_heads = shape.kv_heads;
  layer.head_dim = shape.head_dim;
  layer.dtype = shape.dtype;
}

}  // namespace ringmark::cluster
