// The inner loop of score_chunks: one tile of rows of one query head against all landmarks of one landmark head.
// Compiled once an instruction set from score_tile.inl; this header is plain data, so that nothing but these functions
// is shared between files of different instruction sets.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/log_sum.h"

namespace ringmark::kernels::cpu {

// Scores are made and consumed a strip of this many chunks at a time, so that a tile's scores stay in the L1 cache.
inline constexpr int kStripChunks = 128;
// A tile function orders up to this many candidates of a row itself, by counting; sorting wins above it.
inline constexpr int kMaxRanked = 256;
// Disjoint groups of a row's chunks whose best scores are kept while topk is at most kGroups.
inline constexpr int kGroups = 32;
// Floats and positions past the last candidate that whole-vector stores may overwrite.
inline constexpr int kCandidatePadding = 32;

// A LogSum in the making. The digits of the terms since the last change of place are still spread over vector lanes;
// their form is the instruction set's own. Digits are integers, so the total has the bits of LogSum::add.
struct SumLanes {
  LogSum total;
  // Of the current place: adding `shift` to s log2(e) rounds it to an integer and subtracts the exponent of the high
  // digit's unit; terms at or below 2^lowest add nothing. Before the first term every finite score changes the place.
  float shift = std::numeric_limits<float>::infinity();
  float lowest = std::numeric_limits<float>::infinity();
  bool one_by_one = false;  // exponents too large for the rounding above: LogSum::add takes over
  alignas(64) unsigned char digits[256] = {};
};

// Moves the total to the place of `score`, a finite one that needs a higher place. The digits must have been folded in.
void raise_sum(SumLanes& sum, float score);
// Adds the scores that are not NaN.
void add_one_by_one(LogSum& total, const float* scores, std::int64_t count);
// ln of the total; leaves the sum empty. The digits must have been folded in.
float take_value(SumLanes& sum);

// The best chunks of a row so far and, behind them, newer ones that may be better: in ascending position.
struct CandidateBuffer {
  float* scores = nullptr;
  std::int32_t* positions = nullptr;
  std::int64_t held = 0;
  // A chunk that scores less cannot be among the best.
  float threshold = -std::numeric_limits<float>::infinity();
  // The largest scores of kGroups disjoint groups of chunks. K of them are reached by K chunks: their least is a
  // threshold.
  alignas(64) float group_best[kGroups];
};

// The oracle score of one chunk in the making.
struct ChunkSum {
  SumLanes sum;
  bool has_nan = false;
};

struct ScoreRow {
  const float* query = nullptr;  // head_dim floats, the scale multiplied in
  std::int64_t begin = 0;        // eligible chunks, as positions in the list of landmarks
  std::int64_t end = 0;
  SumLanes sum;
  CandidateBuffer best;
  std::int16_t* order = nullptr;  // [kMaxRanked]; out: the candidates from the best to the worst
  ChunkSum* chunk_sum = nullptr;  // oracle only
};

struct ScoreTile {
  ScoreRow* rows = nullptr;
  std::int64_t row_count = 0;
  const float* panels = nullptr;  // of the landmark head, see PackedLandmarks
  const float* bias = nullptr;
  std::int64_t head_dim = 0;
  std::int64_t vectors = 1;
  std::int64_t topk = 0;
  float logit_cap = 0.0f;           // of the products, where it is above 0
  std::int64_t slack = 0;           // candidates a row may hold past topk before the worst are dropped
  float* scores = nullptr;          // scratch [row_count][kStripChunks]
  float* lanes = nullptr;           // scratch [row_count][one panel]; oracle only
  ScoreRow** active = nullptr;      // scratch [row_count]
  const float** queries = nullptr;  // scratch [row_count]
};

// Room that a row's CandidateBuffer needs.
inline constexpr std::int64_t candidate_capacity(std::int64_t topk, std::int64_t slack) {
  return topk + slack + kStripChunks + kCandidatePadding;
}

// Fills the sums and candidates of the tile's rows. On return the total of `sum` is complete and `best` holds the topk
// best chunks and perhaps a few more; `order` is set when there are at most kMaxRanked.
void score_tile_avx2(const ScoreTile& tile);
void score_tile_avx512(const ScoreTile& tile);

}  // namespace ringmark::kernels::cpu
