#include "cluster/prefill/logo_options.h"

#include <fmt/format.h>

#include <array>

#include "cluster/prefill/policy_options.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

using runtime::dense::Strategy;

constexpr double kFarthest = 1e9;  // of a threshold: gates are in (0, 1)
constexpr std::int64_t kMaxSteps = std::int64_t{1} << 40;
// Of the global branch. Ulysses trades whole shards.
constexpr std::array kStrategies = {Strategy::kAllGather, Strategy::kRing, Strategy::kPassQ};

void check_threshold(const OptionValues& values) {
  const OptionValue* const fixed = find_value(values, "threshold");
  const OptionValue* const target = find_value(values, "target-ratio");
  if (fixed == nullptr && target == nullptr) {
    fail_bad_input("--policy logo needs --threshold B or --target-ratio RHO; exactly one of them");
  }
  if (fixed != nullptr && target != nullptr) {
    fail_bad_input(fmt::format("both {} = {} and {} = {} are given; exactly one is needed", fixed->origin, fixed->text,
                               target->origin, target->text));
  }
  if (target != nullptr) {
    if (find_value(values, "controller") != nullptr) return;
    fail_bad_input(fmt::format("{} = {} needs --controller FILE, which keeps the threshold from run to run",
                               target->origin, target->text));
  }
  for (const char* name : {"threshold-step", "mask-steps", "controller"}) {
    const OptionValue* const given = find_value(values, name);
    if (given == nullptr) continue;
    fail_bad_input(fmt::format("{} = {} has no meaning without --target-ratio", given->origin, given->text));
  }
}

}  // namespace

OptionGroup logo_options() {
  const runtime::logo::ControllerSettings usual;
  OptionGroup group("Only with --policy logo (merge, of its global branch, is then all-gather, ring or pass-q)");
  group.add("threshold", "B", "rows with a gate above B attend to all keys too; or else")
      .add("target-ratio", "RHO", "the share of rows that shall do so: the threshold follows it from run to run")
      .add("threshold-step", "X",
           fmt::format("how far a run moves the threshold, above 0 and at most 1 (default: {})", usual.threshold_step))
      .add("mask-steps", "N",
           fmt::format("runs until the threshold has come from its start to 0.5 (default: {})", usual.mask_steps))
      .add("controller", "FILE", "where the threshold is kept: read if it is there, and replaced after the run");
  return group;
}

LogoOptions read_logo(const OptionValues& values) {
  check_threshold(values);
  LogoOptions options;
  options.strategy = read_choice<Strategy>(values, "merge", kStrategies, [](Strategy strategy) {
                       return name_of(strategy);
                     }).value_or(options.strategy);
  options.threshold = read_real(values, "threshold", -kFarthest, kFarthest);
  if (const auto target = read_fraction(values, "target-ratio")) {
    runtime::logo::ControllerSettings settings;
    settings.target_ratio = *target;
    settings.threshold_step = read_positive(values, "threshold-step", 1.0).value_or(settings.threshold_step);
    settings.mask_steps = read_count(values, "mask-steps", 0, kMaxSteps).value_or(settings.mask_steps);
    options.controller = settings;
    options.controller_file = read_text(values, "controller");
  }
  return options;
}

}  // namespace ringmark::cluster
