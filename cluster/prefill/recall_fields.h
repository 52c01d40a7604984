// What the report of a prefill says of its recall.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/problem.h"
#include "runtime/recall.h"

namespace ringmark::cluster {

// Names and values of the table's rows; the last is a warning where the recall collapses.
std::vector<std::pair<std::string, std::string>> recall_rows(const runtime::Recall& recall,
                                                             const AttentionProblem& problem);
// The object `recall` (docs/report.md).
nlohmann::ordered_json recall_json(const runtime::Recall& recall);

}  // namespace ringmark::cluster
