// `--policy NAME` and the options that say which keys a query attends to. What a policy does not honour is refused by
// name: its row in policy_table() lists what it does.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "cluster/options/option_group.h"
#include "cluster/options/option_layers.h"
#include "core/problem.h"

namespace ringmark::cluster {

struct PolicyOptions {
  std::string_view name = "hils";
  // Unset: the metadata of the file decides, without it the default of the policy.
  std::optional<std::int64_t> topk;
  std::optional<std::int64_t> window;  // of xl and compressive: the memory
  std::optional<std::int64_t> sinks;
  std::optional<std::int64_t> segment;
  std::optional<Choice> choice;
  LandmarkPositions landmark_positions = LandmarkPositions::kTrue;

  // What a layer whose metadata say `stored` is attended with, for the policies of the sparse engine: those that choose
  // chunks by a score, and those of one window. Throws Error(kBadInput) for a value that the policy needs and has not.
  AttentionPolicy apply(AttentionPolicy stored) const;
};

// Are its results computed by runtime::prefill()?
bool is_sparse_engine_policy(std::string_view name);
// May its layers be kept, reused and computed on a GPU? These know one form of selection.
bool is_kept_policy(const PolicyOptions& policy);

// Throws Error(kBadInput) for the first of these options that is given.
void refuse_options(const OptionValues& values, std::span<const char* const> names, std::string_view policy);
// The same for what prefill offers with the sparse engine alone, for a policy that has an engine of its own.
void refuse_sparse_engine_options(const OptionValues& values, std::string_view policy);

OptionGroup policy_options();
// Throws Error(kBadInput) in one line for an unknown policy, and for every option that the policy does not honour.
PolicyOptions read_policy(const OptionValues& values);

}  // namespace ringmark::cluster
