// Random choices for tests of what is attended: neighbours often choose alike, as real queries do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/select_chunks.h"
#include "partition/sequence_grid.h"
#include "tests/kernels/attention_case.h"

namespace ringmark::kernels {

// As random_policy, with any heads that agree.
inline AttentionPolicy random_chooser(std::mt19937_64& random, const AttentionProblem& problem) {
  AttentionPolicy policy = random_policy(random, problem);
  policy.choice = pick<Choice>(random, {Choice::kGroup, Choice::kHead, Choice::kAll});
  return policy;
}

// Chooses for one (row, chooser) of rows that stand in token order. `fresh` rows in four, and every row whose eligible
// chunks differ from those of the row before, choose anew: count() of their eligible chunks, asked once these are
// shuffled. The others choose what the row before them chose.
template <class Count>
void choose_at_random(const partition::SequenceGrid& grid, std::mt19937_64& random, std::uint64_t fresh,
                      std::int64_t row, std::int64_t chooser, Selection& selection, const Count& count) {
  const Range<ChunkId> eligible = grid.eligible(TokenId(row));
  const auto slots = selection.slots(row, chooser);
  if (row > 0 && random() % 4 >= fresh && grid.eligible(TokenId(row - 1)) == eligible) {
    const auto before = selection.slots(row - 1, chooser);
    std::copy(before.begin(), before.end(), slots.begin());
    return;
  }
  std::vector<std::int32_t> chunks;
  for (ChunkId chunk = eligible.begin; chunk < eligible.end; ++chunk) {
    chunks.push_back(static_cast<std::int32_t>(chunk.value()));
  }
  std::shuffle(chunks.begin(), chunks.end(), random);
  chunks.resize(std::min(chunks.size(), count()));
  std::sort(chunks.begin(), chunks.end());
  std::copy(chunks.begin(), chunks.end(), slots.begin());
}

}  // namespace ringmark::kernels
