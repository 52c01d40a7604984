// How ranks come to exact causal attention over keys that are spread over all of them.
#pragma once

#include <array>
#include <string_view>

namespace ringmark::runtime::dense {

enum class Strategy {
  kAuto,         // the cost model decides
  kRing,         // keys and values travel from neighbour to neighbour, queries stay
  kPassQ,        // queries visit the keys, partial results return
  kAllGather,    // keys and values come from their owners, in pieces of the memory budget
  kUlysses,      // every rank attends for some heads over the whole sequence
  kRingUlysses,  // groups of ranks share heads, and rings connect the groups
};

inline constexpr std::array kStrategies = {Strategy::kAuto,      Strategy::kRing,    Strategy::kPassQ,
                                           Strategy::kAllGather, Strategy::kUlysses, Strategy::kRingUlysses};

constexpr std::string_view name_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::kAuto: return "auto";
    case Strategy::kRing: return "ring";
    case Strategy::kPassQ: return "pass-q";
    case Strategy::kAllGather: return "all-gather";
    case Strategy::kUlysses: return "ulysses";
    case Strategy::kRingUlysses: return "ring-ulysses";
  }
  return "?";
}

}  // namespace ringmark::runtime::dense
