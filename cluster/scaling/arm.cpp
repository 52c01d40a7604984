#include "cluster/scaling/arm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "cluster/prefill/policy_table.h"
#include "core/error.h"
#include "runtime/dense/strategy.h"

namespace ringmark::cluster {
namespace {

// What a study gives every run itself, or what would make runs differ from each other.
constexpr std::array<std::string_view, 16> kReserved = {
    "planted", "input",  "policy", "merge", "json",   "trace",       "log-dir",  "digest",
    "quiet",   "output", "reuse",  "help",  "config", "topk-chunks", "snapshot", "memory-plan"};
// Of blocks that are read one by one, which dense attention does not do.
constexpr std::array<std::string_view, 3> kOfBlocks = {"transport", "kv-budget-mib", "spill-dir"};

struct ArmPolicy {
  std::string policy;
  std::string merge;  // empty: the policy's own choice
};

std::optional<ArmPolicy> find_arm(const std::string& name) {
  if (name == "sparse") return ArmPolicy{"hils", ""};
  for (const runtime::dense::Strategy strategy : runtime::dense::kStrategies) {
    if (strategy != runtime::dense::Strategy::kAuto && name == name_of(strategy)) return ArmPolicy{"dense", name};
  }
  if (find_policy(name) != nullptr) return ArmPolicy{name, ""};
  return std::nullopt;
}

// "topk" of "--topk" and of "--topk=8"; empty for what is no flag.
std::string option_name(const std::string& argument) {
  if (!argument.starts_with("--") || argument.size() == 2) return "";
  return argument.substr(2, argument.find('=') - 2);
}

bool lists(std::string_view options, const std::string& name) {
  const std::string flag = fmt::format("--{} ", name);
  return fmt::format("{} ", options).find(flag) != std::string::npos;
}

bool understands(const std::string& policy, const std::string& option) {
  if (policy == "dense" && std::find(kOfBlocks.begin(), kOfBlocks.end(), option) != kOfBlocks.end()) return false;
  const auto rows = policy_table();
  const bool special =
      std::any_of(rows.begin(), rows.end(), [&](const PolicyRow& r) { return lists(r.options, option); });
  return !special || lists(find_policy(policy)->options, option);
}

}  // namespace

void check_arm(const std::string& name) {
  if (find_arm(name)) return;
  fail_bad_input(
      fmt::format("--arms: '{}' is neither sparse, ring, pass-q, all-gather, ulysses or ring-ulysses nor a "
                  "policy of `ringmark policies`",
                  name));
}

std::vector<std::string> arm_options(const std::string& name, const std::vector<std::string>& shared) {
  const ArmPolicy arm = find_arm(name).value();
  std::vector<std::string> options = {"--policy", arm.policy};
  if (!arm.merge.empty()) options.insert(options.end(), {"--merge", arm.merge});
  bool kept = true;
  for (const std::string& argument : shared) {
    const std::string option = option_name(argument);
    if (!option.empty()) kept = understands(arm.policy, option);
    if (kept) options.push_back(argument);  // a value goes with its flag
  }
  return options;
}

void check_shared_options(const std::vector<std::string>& shared) {
  bool after_flag = false;
  for (const std::string& argument : shared) {
    const std::string option = option_name(argument);
    if (option.empty() && !after_flag) {
      fail_bad_input(fmt::format("argument '{}' behind -- belongs to no flag of ringmark prefill", argument));
    }
    if (std::find(kReserved.begin(), kReserved.end(), option) != kReserved.end()) {
      fail_bad_input(fmt::format("--{} behind -- is decided by the study itself", option));
    }
    after_flag = !option.empty() && argument.find('=') == std::string::npos;
  }
}

}  // namespace ringmark::cluster
