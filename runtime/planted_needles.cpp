#include "runtime/planted_needles.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "partition/sequence_grid.h"

namespace ringmark::runtime {

PlantedNeedles place_needles(const AttentionProblem& problem, const AttentionPolicy& policy, std::int64_t wanted,
                             const std::function<std::uint64_t(std::int64_t needle)>& draw) {
  if (!problem.cu_seqlens.empty()) fail_bad_input("cu-seqlens does not go with a planted layer: it is one document");
  const partition::SequenceGrid grid(problem, policy);
  PlantedNeedles placed;
  std::vector<TokenId> questions;  // from the end
  for (TokenId token(problem.tokens - 1); token >= TokenId(0); token = token - 1) {
    if (static_cast<std::int64_t>(questions.size()) == wanted) break;
    if (grid.is_key(token)) questions.push_back(token);
  }
  if (questions.empty()) return placed;
  const Range<ChunkId> eligible = grid.eligible(questions.back());
  const std::int64_t needles = std::min(static_cast<std::int64_t>(questions.size()), eligible.size());
  for (std::int64_t needle = 0; needle < needles; ++needle) {
    const ChunkId chunk = eligible.begin + (2 * needle + 1) * eligible.size() / (2 * needles);
    const Range<TokenId> keys = grid.keys_of(chunk);
    const std::uint64_t place = draw(needle) % static_cast<std::uint64_t>(keys.size());
    placed.key_at[(keys.begin + static_cast<std::int64_t>(place)).value()] = needle;
    placed.landmark_at[grid.landmark_slot(chunk).value()] = needle;
    placed.question_at[questions[static_cast<std::size_t>(needle)].value()] = needle;
  }
  return placed;
}

}  // namespace ringmark::runtime
