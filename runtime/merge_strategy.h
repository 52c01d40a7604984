// How the ranks find the global choice. Both ways give the same selection; they differ in what moves.
#pragma once

#include <string_view>

namespace ringmark::runtime {

enum class Merge {
  kAuto,       // the cost model decides
  kScores,     // queries visit the landmarks: lists of scores are merged, landmark tables stay sharded
  kLandmarks,  // landmark tables are gathered and scored locally
};

constexpr std::string_view name_of(Merge merge) {
  switch (merge) {
    case Merge::kAuto: return "auto";
    case Merge::kScores: return "scores";
    case Merge::kLandmarks: return "landmarks";
  }
  return "?";
}

}  // namespace ringmark::runtime
