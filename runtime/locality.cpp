#include "runtime/locality.h"

#include <algorithm>
#include <vector>

namespace ringmark::runtime {
namespace {

struct TileSums {
  std::int64_t distinct = 0;    // sum over tiles of chunks chosen, each once
  double chosen_a_query = 0.0;  // sum over tiles of the mean number a query chose
};

TileSums sum_tiles(const kernels::Selection& selection, std::span<const TokenId> tokens, std::int64_t tile) {
  TileSums sums;
  std::vector<std::int32_t> chosen;
  const auto rows = static_cast<std::int64_t>(tokens.size());
  for (std::int64_t chooser = 0; chooser < selection.choosers; ++chooser) {
    for (std::int64_t begin = 0, end = 0; begin < rows; begin = end) {
      const std::int64_t index = tokens[static_cast<std::size_t>(begin)].value() / tile;
      chosen.clear();
      for (end = begin; end < rows && tokens[static_cast<std::size_t>(end)].value() / tile == index; ++end) {
        const auto slots = selection.chosen(end, chooser);
        chosen.insert(chosen.end(), slots.begin(), slots.end());
      }
      sums.chosen_a_query += static_cast<double>(chosen.size()) / static_cast<double>(end - begin);
      std::sort(chosen.begin(), chosen.end());
      sums.distinct += std::unique(chosen.begin(), chosen.end()) - chosen.begin();
    }
  }
  return sums;
}

}  // namespace

std::array<double, 3> union_ratios(comm::Communicator& communicator, const kernels::Selection& selection,
                                   std::span<const TokenId> tokens) {
  constexpr double kMicro = 1e6;  // sums travel as integers, so that their order cannot matter
  std::array<std::int64_t, 6> sums{};
  for (std::size_t i = 0; i < kUnionTiles.size(); ++i) {
    const TileSums tiles = sum_tiles(selection, tokens, kUnionTiles[i]);
    sums[2 * i] = tiles.distinct;
    sums[2 * i + 1] = static_cast<std::int64_t>(tiles.chosen_a_query * kMicro);
  }
  communicator.all_reduce_sum("union ratio", sums);
  std::array<double, 3> ratios{};
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    const double chosen = static_cast<double>(sums[2 * i + 1]) / kMicro;
    ratios[i] = chosen > 0 ? static_cast<double>(sums[2 * i]) / chosen : 0.0;
  }
  return ratios;
}

}  // namespace ringmark::runtime
