#include "cluster/prefill/logit_options.h"

#include <fmt/format.h>

#include <array>

#include "cluster/options/option_values.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

constexpr std::array kSinkPositions = {SinkPositions::kText, SinkPositions::kCache};
constexpr double kMaxCap = 1e6;

void check_sink_positions(const OptionValues& values) {
  const OptionValue* const positions = find_value(values, "sink-positions");
  const OptionValue* const rope = find_value(values, "rope");
  if (rope == nullptr || rope->text == "none") {
    fail_bad_input(fmt::format("{} = cache needs --rope: the input has its positions", positions->origin));
  }
  const OptionValue* const backend = find_value(values, "backend");
  if (backend != nullptr && backend->text == "cuda") {
    fail_bad_input(
        fmt::format("{} = cache does not go with --backend cuda; limit: cpu or reference", positions->origin));
  }
}

}  // namespace

std::string_view name_of(SinkPositions positions) {
  switch (positions) {
    case SinkPositions::kText: return "text";
    case SinkPositions::kCache: return "cache";
  }
  return "?";
}

OptionGroup logit_options() {
  OptionGroup group("Logits");
  group
      .add("logit-cap", "X",
           "logits become X tanh(logit / X), before the mask; 0: they stay (default: the file's metadata logit_cap, "
           "else 0)")
      .add_switch(
          "alibi",
          "take slope x distance off every logit, by the usual slopes of the heads; for policies that choose no "
          "chunks (also the file's metadata alibi)")
      .add_switch("softmax-zero",
                  "end every softmax with one more logit, 0, without a value; the tensor sink_logits of the input says "
                  "others, a head each")
      .add("sink-positions", "NAME",
           "where a rotated query stands when it attends to sinks below its window: text, or cache, as if nothing lay "
           "between sinks and window (default: cache with --rope and a window to the token, else text)");
  return group;
}

LogitOptions read_logit_options(const OptionValues& values) {
  LogitOptions options;
  options.cap = read_real(values, "logit-cap", 0.0, kMaxCap);
  options.alibi = read_switch(values, "alibi");
  options.softmax_zero = read_switch(values, "softmax-zero");
  options.sink_positions = read_choice<SinkPositions>(values, "sink-positions", kSinkPositions,
                                                      [](SinkPositions positions) { return name_of(positions); });
  if (options.sink_positions == SinkPositions::kCache) check_sink_positions(values);
  return options;
}

}  // namespace ringmark::cluster
