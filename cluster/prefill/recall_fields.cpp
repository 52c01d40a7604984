#include "cluster/prefill/recall_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace ringmark::cluster {
namespace {

using runtime::Recall;
using runtime::RecallShare;

nlohmann::ordered_json share_json(const RecallShare& share) {
  nlohmann::ordered_json json = {{"pairs", share.pairs}, {"mean", nullptr}, {"p5", nullptr}};
  if (share.pairs == 0) return json;
  json["mean"] = share.mean;
  json["p5"] = share.p5;
  return json;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> recall_rows(const Recall& recall, const AttentionProblem& problem) {
  if (recall.all.pairs == 0) return {{"recall", fmt::format("no query of {} was sampled", problem.tokens)}};
  std::string depths;
  for (const RecallShare& depth : recall.depths) {
    depths += depth.pairs > 0 ? fmt::format(" {:.3f}", depth.mean) : " -";
  }
  std::vector<std::pair<std::string, std::string>> rows = {
      {"recall", fmt::format("mean {:.4f}, 5 in 100 at most {:.4f}, of the exact softmax mass of {} of {} queries",
                             recall.all.mean, recall.all.p5, recall.rows, problem.tokens)},
      {"recall by depth", depths.substr(1)}};
  if (recall.collapses()) {
    rows.emplace_back("recall warning",
                      fmt::format("below {} on average at some depth, or for 5 queries and heads in 100: keys that "
                                  "matter are missed; --policy oracle tells how much any scorer can keep",
                                  Recall::kCollapse));
  }
  return rows;
}

nlohmann::ordered_json recall_json(const Recall& recall) {
  nlohmann::ordered_json json = {{"rows", recall.rows}};
  json.update(share_json(recall.all));
  for (const RecallShare& depth : recall.depths) json["depths"].push_back(share_json(depth));
  json["collapses"] = recall.collapses();
  return json;
}

}  // namespace ringmark::cluster
