// Scoring on the device, in two steps that together give exactly the choice of the CPU:
//   1. approximate: tensor cores score every eligible chunk with two-term landmarks; per (row, query head) the best
//      candidates and the lse of all scores stay, no score leaves the chip;
//   2. settle: the group rank picks the chunks where the gap at the K-th place is larger than the error bound. Where it
//      is not, the listed candidates are scored exactly, which settles about half of these (row, kv head) pairs; the
//      others are scored exactly with all their chunks (fp32 chains and LogSum of the CPU).
#pragma once

#include "kernels/cuda/landmarks.h"
#include "kernels/cuda/layer.h"
#include "kernels/log_sum.h"
#include "kernels/score_chunks.h"

namespace ringmark::kernels::cuda {

// Step 1's result, on the device, for rows [begin, end) of a call: index 0 is row `begin`.
struct ApproximateLists {
  std::int32_t capacity = 0;        // candidates kept a (row, head): at least topk + 4, see capacity_of
  Candidate* candidates = nullptr;  // [rows, H, capacity] in no order, unused: chunk -1
  // Every eligible chunk that is not listed scores at most this (-inf when all are listed). [rows, H]
  float* cut = nullptr;
  float2* sum = nullptr;  // [rows, H] {m, l}: the natural lse of all eligible scores is m + ln(l); l = 0 when none

  static std::int32_t capacity_of(std::int32_t topk) { return topk + 4 <= 20 ? 20 : topk <= 32 ? 40 : 80; }
};

// queries: those that score, [rows, H, d] of the whole rank. Scores are (scale q) . key + bias, natural units.
// Path kHopper or kMma. Deterministic: a row's result depends on neither tile, range nor run.
void score_approximately(Path path, const LayerShape& shape, const Geometry& geometry, const std::byte* queries,
                         RowRange rows, const LandmarkTiles& tiles, const ApproximateLists& lists, cudaStream_t stream);

// One (row, kv head) pair to be scored exactly.
struct ScoringItem {
  std::int64_t row = 0;
  std::int32_t kv_head = 0;
  std::int32_t spare = 0;
};

// Step 2 for rows [begin, end).
//
// lse_window     [rows of the rank, H]
// selection      [rows of the rank, Hkv, topk]: chosen chunks, ids ascending, -1 at the end
// chosen_scores  [rows of the rank, H, topk]: score of the chunk in the same slot of the head's kv head (approximate
//                to the bound); -inf in unused slots
// records        by chunk, as in score_exactly
// open, open_count  receives the pairs that this cannot settle; their selection is not written. Room for every pair.
// They are put behind those that *open_count says are there: clear it before the first range. In no order.
void settle_choices(const LayerShape& shape, const std::byte* queries, RowRange rows, const LandmarkTiles& tiles,
                    const float* const* records, const ApproximateLists& lists, const float* lse_window,
                    std::int32_t* selection, float* chosen_scores, ScoringItem* open, unsigned long long* open_count,
                    cudaStream_t stream);

// Exact lists: for item n, heads of its group g: candidates [n, group, topk] in contract order (score descending, chunk
// ascending, unused chunk -1) and sums [n, group]: bit for bit those of kernels::score_chunks. Any shape, dtype,
// scorer. Chunks whose record is null are skipped (landmarks that are not here).
void score_exactly(const LayerShape& shape, const Geometry& geometry, const std::byte* queries,
                   const ScoringItem* items, std::int64_t count, const float* const* records, Candidate* candidates,
                   LogSum* sums, cudaStream_t stream);

// Parts of the chunks that are scored side by side: split n has chunks [first + n chunks, first + (n + 1) chunks).
struct ChunkSplits {
  std::int32_t first = 0;
  std::int32_t chunks = 0;
  std::int32_t count = 1;  // at most kMost

  static constexpr std::int32_t kMost = 32;
  // So many that few rows occupy a GPU of `processors` multiprocessors. `eligible`: of any of the rows.
  static ChunkSplits of(const LayerShape& shape, Range<std::int32_t> eligible, std::int64_t rows, int processors);
  // Lists of all splits of so many (row, head) pairs, at most.
  static std::int64_t most_lists(std::int64_t pairs, int processors);
};

// Exact lists of every split: candidates [splits][n, group, topk], sums [splits][n, group].
void score_splits_exactly(const LayerShape& shape, const Geometry& geometry, const std::byte* queries,
                          const ScoringItem* items, std::int64_t count, const float* const* records,
                          const ChunkSplits& splits, Candidate* candidates, LogSum* sums, cudaStream_t stream);

// Joins the lists of `splits` parts of the chunks, as score_splits_exactly writes them: into those of one part. Chunks
// stand in the joined lists as ids[chunk]; ids ascends, and is null where chunks keep their numbers.
void join_lists(const LayerShape& shape, std::int64_t count, std::int32_t splits, const std::int32_t* ids,
                const Candidate* candidates, const LogSum* sums, Candidate* joined, LogSum* joined_sums,
                cudaStream_t stream);

// The group rank over exact lists, as kernels::select_chunks, in fp64; writes selection and chosen_scores of the items.
// chosen_scores of heads whose own list lacks the chunk are computed from the records by the same chain; null: none.
void select_exactly(const LayerShape& shape, const std::byte* queries, const ScoringItem* items, std::int64_t count,
                    const float* const* records, const Candidate* candidates, const LogSum* sums,
                    const float* lse_window, std::int32_t* selection, float* chosen_scores, cudaStream_t stream);

// Scores of chunks that are already chosen, exactly: for merges that made the selection elsewhere. [rows, H, topk]
void score_chosen(const LayerShape& shape, const std::byte* queries, RowRange rows, const std::int32_t* selection,
                  const float* const* records, float* chosen_scores, cudaStream_t stream);

}  // namespace ringmark::kernels::cuda
