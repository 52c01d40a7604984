#include "cluster/doctor/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace ringmark::cluster {
namespace {

// One line whatever the text quotes.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, '?');
  return text;
}

std::ptrdiff_t count(std::span<const Finding> findings, Level level) {
  return std::ranges::count(findings, level, &Finding::level);
}

std::string counted(std::ptrdiff_t number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

}  // namespace

std::string_view name_of(Level level) {
  switch (level) {
    case Level::kPass: return "PASS";
    case Level::kInfo: return "INFO";
    case Level::kWarn: return "WARN";
    case Level::kFail: return "FAIL";
  }
  return "?";
}

void append(Findings& findings, Findings more) {
  findings.insert(findings.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

bool would_fail(std::span<const Finding> findings) { return count(findings, Level::kFail) > 0; }

void print_findings(std::span<const Finding> findings) {
  for (const Finding& finding : findings) {
    const std::string fix = finding.fix.empty() ? "" : "; fix: " + finding.fix;
    fmt::print("{}  {:<11} {}\n", name_of(finding.level), finding.check, printable(finding.found + fix));
  }
  std::fflush(stdout);
}

void print_summary(std::span<const Finding> findings) {
  const auto warnings = count(findings, Level::kWarn);
  const std::string also = warnings == 0 ? "" : fmt::format(", {}", counted(warnings, "warning"));
  if (would_fail(findings)) {
    fmt::print("a job would fail here: {}{}\n", counted(count(findings, Level::kFail), "failure"), also);
  } else {
    fmt::print("a job would run here{}\n", also);
  }
  std::fflush(stdout);
}

nlohmann::ordered_json findings_json(std::span<const Finding> findings) {
  auto json = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    json.push_back(
        {{"level", name_of(finding.level)}, {"check", finding.check}, {"found", finding.found}, {"fix", finding.fix}});
  }
  return json;
}

}  // namespace ringmark::cluster
