#include "cluster/prefill/landmark_options.h"

#include <fmt/format.h>

#include <array>

#include "cluster/options/option_values.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

using runtime::LandmarkQuery;

constexpr std::array kQueries = {LandmarkQuery::kSlot, LandmarkQuery::kChunk, LandmarkQuery::kShared};

}  // namespace

OptionGroup landmark_options() {
  OptionGroup group("Landmarks and retrieval queries of hils");
  group
      .add("landmark-query", "NAME",
           "where the landmark query of a chunk comes from: slot (the retrieval query at its last slot), chunk (the "
           "tensor chunk_landmark_q, one a full chunk) or shared (the tensor shared_landmark_q, one for all) "
           "(default: slot)")
      .add_switch(
          "calibrate",
          "make the retrieval queries of the tensors hidden and calibration.q, .up, .down and .norm, before any "
          "rotation");
  return group;
}

LandmarkQuery read_landmark_query(const OptionValues& values) {
  const auto from = read_choice<LandmarkQuery>(values, "landmark-query", kQueries,
                                               [](LandmarkQuery query) { return name_of(query); });
  if (!from || *from == LandmarkQuery::kSlot) return LandmarkQuery::kSlot;
  const OptionValue* const given = find_value(values, "landmark-query");
  const auto refuse = [&](const char* name, const char* why) {
    fail_bad_input(fmt::format("{} = {} does not go with --{}: {}", given->origin, given->text, name, why));
  };
  if (find_value(values, "planted") != nullptr) refuse("planted", "a generated layer has no such tensor");
  if (find_value(values, "reuse") != nullptr) refuse("reuse", "a snapshot does not say how its landmarks were built");
  if (find_value(values, "snapshot") != nullptr) refuse("snapshot", "decoding builds landmarks of slots");
  const OptionValue* const backend = find_value(values, "backend");
  if (backend != nullptr && backend->text == "cuda") refuse("backend cuda", "limit: cpu or reference");
  return *from;
}

bool read_calibrate(const OptionValues& values) {
  if (!read_switch(values, "calibrate")) return false;
  const OptionValue* const given = find_value(values, "calibrate");
  const auto refuse = [&](const char* name, const char* why) {
    if (find_value(values, name) == nullptr) return;
    fail_bad_input(fmt::format("{} does not go with --{}: {}", given->origin, name, why));
  };
  refuse("planted", "a generated layer has no hidden states");
  refuse("reuse", "kept rows are compared with landmark_q");
  return true;
}

}  // namespace ringmark::cluster
