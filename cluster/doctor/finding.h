// What one check found.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringmark::cluster {

enum class Level {
  kPass,
  kInfo,
  kWarn,  // the job would run, worse than it could
  kFail,  // the job would not run
};

std::string_view name_of(Level level);

struct Finding {
  Level level = Level::kPass;
  std::string check;  // "launch", "gpus", ...
  std::string found;
  std::string fix;  // to type; empty: nothing to do
};

using Findings = std::vector<Finding>;

void append(Findings& findings, Findings more);
bool would_fail(std::span<const Finding> findings);

// A line each on stdout, then one that sums up.
void print_findings(std::span<const Finding> findings);
void print_summary(std::span<const Finding> findings);

nlohmann::ordered_json findings_json(std::span<const Finding> findings);

}  // namespace ringmark::cluster
