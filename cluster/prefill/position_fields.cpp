#include "cluster/prefill/position_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace ringmark::cluster {
namespace {

const char* ids_text(const PositionReport& report) { return report.own_positions ? "input" : "documents"; }

}  // namespace

std::string positions_text(const PositionReport& report, const AttentionProblem& problem) {
  const kernels::PositionEncoding& encoding = report.encoding;
  std::string text(name_of(encoding.kind));
  if (encoding.kind != kernels::PositionKind::kHopePartial) text += fmt::format(", theta {:g}", encoding.theta);
  if (encoding.factor > 1.0) text += fmt::format(", factor {:g}", encoding.factor);
  if (encoding.original_length > 0) text += fmt::format(", original {}", encoding.original_length);
  text += fmt::format(", {}, {} of {} elements, ids of the {}", name_of(encoding.layout),
                      encoding.rotary_dim_of(problem.head_dim), problem.head_dim, ids_text(report));
  if (report.cached_sinks) text += ", sinks at their place in the cache";
  const double gain = scale_gain(encoding);
  if (gain != 1.0) text += fmt::format("; scale {:.6g} with gain {:.6g}", problem.scale, gain);
  return text;
}

nlohmann::ordered_json positions_json(const PositionReport& report, const AttentionProblem& problem) {
  const kernels::PositionEncoding& encoding = report.encoding;
  nlohmann::ordered_json json;
  json["kind"] = name_of(encoding.kind);
  json["theta"] = encoding.theta;
  json["factor"] = encoding.factor;
  json["original_length"] = encoding.original_length;
  json["layout"] = name_of(encoding.layout);
  json["rotary_dim"] = encoding.rotary_dim_of(problem.head_dim);
  json["ids"] = ids_text(report);
  json["sinks"] = report.cached_sinks ? "cache" : "text";
  json["scale_gain"] = scale_gain(encoding);
  return json;
}

}  // namespace ringmark::cluster
