// Every policy of `prefill --policy NAME` in one row: what `ringmark policies` prints. docs/policies.md holds the same
// table with a section a policy below it, and a test compares the two cell by cell.
#pragma once

#include <span>
#include <string_view>

namespace ringmark::cluster {

// Plain text in one line without '|', the separator of the cells in docs/policies.md.
struct PolicyRow {
  std::string_view name;     // as --policy takes it
  std::string_view paper;    // what introduced it, with its arXiv number
  std::string_view formula;  // in the words of docs/numerics.md, at most 60 characters
  std::string_view options;  // of its own, beside those of every prefill
  std::string_view exact;    // which part is no approximation of what the formula says
  std::string_view test;     // the independent check of its results, in tests/policies
};

// In the order of docs/policies.md: policies that choose, then those with fixed keys, then those of several branches.
std::span<const PolicyRow> policy_table();

// Null for a name that no policy has.
const PolicyRow* find_policy(std::string_view name);

}  // namespace ringmark::cluster
