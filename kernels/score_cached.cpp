#include "kernels/score_cached.h"

#include <algorithm>
#include <vector>

namespace ringmark::kernels {
namespace {

std::vector<float> meet_far_landmarks(const CachePositions& positions, const RowsView& queries,
                                      std::span<const TokenId> tokens, int threads) {
  const std::int64_t width = queries.heads * queries.head_dim;
  std::vector<float> turned(tokens.size() * static_cast<std::size_t>(width));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t row = 0; row < std::ssize(tokens); ++row) {
    const std::span<float> heads(turned.data() + row * width, static_cast<std::size_t>(width));
    widen(queries.row(row, 0), queries.dtype, width, heads.data());
    positions.meet_far_landmarks(tokens[static_cast<std::size_t>(row)], heads);
  }
  return turned;
}

// The best of both, of disjoint chunks.
void add_list(std::span<const Candidate> more, std::vector<Candidate>& room, std::span<Candidate> list) {
  room.resize(list.size() + more.size());
  const auto stands_first = [](const Candidate& a, const Candidate& b) {
    return a.chunk >= 0 && (b.chunk < 0 || better(a, b));
  };
  std::merge(list.begin(), list.end(), more.begin(), more.end(), room.begin(), stands_first);
  std::copy_n(room.begin(), list.size(), list.begin());
}

}  // namespace

CandidateLists score_cached_chunks(const AttentionProblem& problem, const AttentionPolicy& policy,
                                   const CachePositions& positions, const RowsView& queries,
                                   std::span<const TokenId> tokens, const PackedLandmarks& near,
                                   const PackedLandmarks& far, int threads) {
  std::vector<Range<ChunkId>> near_chunks, far_chunks;
  for (const TokenId token : tokens) {
    near_chunks.push_back(positions.near(token));
    far_chunks.push_back(positions.far(token));
  }
  CandidateLists lists = score_chunks(problem, policy, near_chunks, queries, near, threads);
  const std::vector<float> turned = meet_far_landmarks(positions, queries, tokens, threads);
  const RowsView far_queries{reinterpret_cast<const std::byte*>(turned.data()), DType::kFloat32, queries.rows,
                             queries.heads, queries.head_dim};
  const CandidateLists of_far = score_chunks(problem, policy, far_chunks, far_queries, far, threads);
  std::vector<Candidate> room;
  for (std::int64_t row = 0; row < lists.rows; ++row) {
    for (std::int64_t head = 0; head < lists.heads; ++head) {
      add_list(of_far.list(row, head), room, lists.list(row, head));
      lists.sum(row, head).add(of_far.sum(row, head));
    }
  }
  return lists;
}

}  // namespace ringmark::kernels
