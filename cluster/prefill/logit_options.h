// The options that make a layer's logits other than scaled products (docs/numerics.md, "Logits").
#pragma once

#include <optional>
#include <string_view>

#include "cluster/options/option_group.h"
#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

// Where a rotated query stands when it attends to sinks below its window.
enum class SinkPositions {
  kText,   // where it is
  kCache,  // behind the sinks and the window, as if nothing lay between the two (StreamingLLM)
};

std::string_view name_of(SinkPositions positions);

struct LogitOptions {
  std::optional<double> cap;                    // unset: the file's metadata, else none
  bool alibi = false;                           // or by the file's metadata
  bool softmax_zero = false;                    // a sink logit of 0 for every head
  std::optional<SinkPositions> sink_positions;  // unset: cache with rotated queries and an exact window, else text
};

OptionGroup logit_options();

// Throws Error(kBadInput) for a number outside its limits and for options that do not fit together.
LogitOptions read_logit_options(const OptionValues& values);

}  // namespace ringmark::cluster
