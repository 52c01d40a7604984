#include "cluster/prefill/policies_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "cluster/options/text_file.h"
#include "cluster/prefill/policy_table.h"

namespace ringmark::cluster {
namespace {

struct Column {
  std::string_view title;
  std::string_view PolicyRow::*cell;
};

constexpr std::array kColumns = {Column{"name", &PolicyRow::name},       Column{"paper", &PolicyRow::paper},
                                 Column{"formula", &PolicyRow::formula}, Column{"options", &PolicyRow::options},
                                 Column{"exact", &PolicyRow::exact},     Column{"test", &PolicyRow::test}};
constexpr std::size_t kLineWidth = 120;  // characters
constexpr std::size_t kGap = 2;          // between columns

using Widths = std::array<std::size_t, kColumns.size()>;

constexpr std::string_view kHelpHead =
    R"(ringmark policies: which keys a query attends to under each --policy of ringmark prefill, and how they are weighed.

  ringmark policies
  ringmark policies --json policies.json

docs/policies.md has the same table and says more about each. Options that take values are described by
ringmark prefill --help.
)";

// In characters.
std::size_t longest_word(std::string_view text) {
  std::size_t longest = 0;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) longest = std::max(longest, word.size());
  return longest;
}

// As wide as the longest cell, then the column with most room beyond its longest word gives way until a line fits.
Widths fit_columns(std::span<const PolicyRow> rows) {
  Widths widths{};
  Widths spare{};
  std::size_t total = kGap * (kColumns.size() - 1);
  for (std::size_t i = 0; i < kColumns.size(); ++i) {
    widths[i] = kColumns[i].title.size();
    std::size_t least = widths[i];
    for (const PolicyRow& row : rows) {
      widths[i] = std::max(widths[i], (row.*kColumns[i].cell).size());
      least = std::max(least, longest_word(row.*kColumns[i].cell));
    }
    spare[i] = widths[i] - least;
    total += widths[i];
  }
  for (; total > kLineWidth; --total) {
    const auto most = std::max_element(spare.begin(), spare.end());
    if (*most == 0) break;
    --*most;
    --widths[static_cast<std::size_t>(most - spare.begin())];
  }
  return widths;
}

// The text in lines of at most `width` characters, broken at blanks. A longer word has a line of its own.
std::vector<std::string> wrap(std::string_view text, std::size_t width) {
  std::vector<std::string> lines(1);
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

void print_row(const std::array<std::string_view, kColumns.size()>& cells, const Widths& widths) {
  std::array<std::vector<std::string>, kColumns.size()> wrapped;
  std::size_t height = 0;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    wrapped[i] = wrap(cells[i], widths[i]);
    height = std::max(height, wrapped[i].size());
  }
  for (std::size_t at = 0; at < height; ++at) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      line += fmt::format("{:<{}}", at < wrapped[i].size() ? wrapped[i][at] : "", widths[i] + kGap);
    }
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
}

void print_table(std::span<const PolicyRow> rows) {
  const Widths widths = fit_columns(rows);
  std::array<std::string_view, kColumns.size()> cells;
  for (std::size_t i = 0; i < cells.size(); ++i) cells[i] = kColumns[i].title;
  print_row(cells, widths);
  for (const PolicyRow& row : rows) {
    for (std::size_t i = 0; i < cells.size(); ++i) cells[i] = row.*kColumns[i].cell;
    print_row(cells, widths);
  }
}

nlohmann::ordered_json table_json(std::span<const PolicyRow> rows) {
  nlohmann::ordered_json json = {{"policies", nlohmann::ordered_json::array()}};
  for (const PolicyRow& row : rows) {
    nlohmann::ordered_json entry;
    for (const Column& column : kColumns) entry[column.title] = row.*column.cell;
    json["policies"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace

boost::program_options::options_description policies_descriptions() {
  OptionGroup group("Options");
  group.add("json", "FILE", "write what is printed as JSON (default: none)")
      .add("config", "FILE", "read options from lines of the form key = value, # begins a comment")
      .add_switch("help", "print this text");
  return group.options();
}

std::string policies_help() {
  std::ostringstream text;
  text << kHelpHead << "\n" << policies_descriptions();
  return text.str();
}

int run_policies(const std::vector<std::string>& arguments, const Environment& environment) {
  const OptionValues values = read_option_layers(policies_descriptions(), arguments, environment);
  const std::string json = read_text(values, "json");
  if (!json.empty()) check_text_file(json);
  print_table(policy_table());
  if (!json.empty()) write_text_file(json, table_json(policy_table()).dump(2) + "\n");
  return 0;
}

}  // namespace ringmark::cluster
