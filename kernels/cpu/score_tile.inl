// The tile function of score_chunks. Included by one file an instruction set, after its simd header and digit lanes,
// with RM_SCORE_TILE naming the function. Raw pointers only: an inline function of the standard library compiled here
// for AVX-512 could be the copy that the linker keeps for every processor.

#include "kernels/cpu/logit_cap.inl"
#include "kernels/cpu/panel_product.h"
#include "kernels/cpu/score_tile.h"
#include "kernels/exp2.h"

namespace ringmark::kernels::cpu {

#include "kernels/cpu/score_tile_sum.inl"
#include "kernels/cpu/score_tile_topk.inl"

namespace {

// The chunks [begin, end) whose scores are at hand; row r of the active rows has them at scores + r * kStripChunks.
struct Strip {
  std::int64_t begin;
  std::int64_t end;
  bool raises_threshold;
};

// Rows that may see a chunk of the strip.
std::int64_t gather_active(const ScoreTile& tile, const Strip& strip) {
  std::int64_t active = 0;
  for (ScoreRow* row = tile.rows; row != tile.rows + tile.row_count; ++row) {
    if (row->begin >= strip.end || row->end <= strip.begin) continue;
    tile.active[active] = row;
    tile.queries[active] = row->query;
    ++active;
  }
  return active;
}

// One vector a landmark: a chunk is a lane.
void score_strip(const ScoreTile& tile, const Strip& strip, std::int64_t active) {
  for (std::int64_t lane = strip.begin; lane < strip.end; lane += kPanelColumns) {
    multiply_panel<Accumulate::kFromZero>(tile.queries, active, tile.head_dim, tile.panels + lane * tile.head_dim,
                                          tile.scores + (lane - strip.begin), kStripChunks);
  }
  if (tile.logit_cap > 0.0f) cap_scores(tile.scores, active * kStripChunks, tile.logit_cap);
}

// Adds lanes [begin, end) of a panel, vectors of one chunk, to the sum of that chunk.
void add_vectors(ChunkSum& chunk, const float* lanes, const float* bias, std::int64_t begin, std::int64_t end) {
  alignas(64) float terms[kPanelColumns];
  for (int i = 0; i < kPanelColumns; ++i) {
    const bool used = begin <= i && i < end && bias[i] != kMinusInfinity;
    terms[i] = used ? lanes[i] + bias[i] : kMinusInfinity;
    chunk.has_nan |= terms[i] != terms[i];
  }
  Vector largest = Simd::load(terms);
  for (int i = Simd::kLanes; i < kPanelColumns; i += Simd::kLanes) largest = Simd::max(Simd::load(terms + i), largest);
  add_scores(chunk.sum, terms, kPanelColumns, largest);
}

float take_chunk_score(ChunkSum& chunk) {
  fold_digits(chunk.sum);
  const float score = take_value(chunk.sum);
  const bool has_nan = chunk.has_nan;
  chunk.has_nan = false;
  return has_nan ? __builtin_nanf("") : score;
}

// Many vectors a landmark: a chunk is a run of lanes, and its score the logsumexp over them.
void score_strip_of_vectors(const ScoreTile& tile, const Strip& strip, std::int64_t active) {
  const std::int64_t first_lane = strip.begin * tile.vectors;
  const std::int64_t end_lane = strip.end * tile.vectors;
  for (std::int64_t panel = first_lane / kPanelColumns * kPanelColumns; panel < end_lane; panel += kPanelColumns) {
    const float* bias = tile.bias + panel;
    multiply_panel<Accumulate::kFromZero>(tile.queries, active, tile.head_dim, tile.panels + panel * tile.head_dim,
                                          tile.lanes, kPanelColumns);
    if (tile.logit_cap > 0.0f) cap_scores(tile.lanes, active * kPanelColumns, tile.logit_cap);
    const std::int64_t stop = panel + kPanelColumns < end_lane ? panel + kPanelColumns : end_lane;
    for (std::int64_t lane = panel < first_lane ? first_lane : panel; lane < stop;) {
      const std::int64_t chunk = lane / tile.vectors;
      const std::int64_t chunk_end = (chunk + 1) * tile.vectors;
      const std::int64_t end = chunk_end < stop ? chunk_end : stop;
      for (std::int64_t r = 0; r < active; ++r) {
        ChunkSum& sum = *tile.active[r]->chunk_sum;
        add_vectors(sum, tile.lanes + r * kPanelColumns, bias, lane - panel, end - panel);
        if (end == chunk_end) tile.scores[r * kStripChunks + chunk - strip.begin] = take_chunk_score(sum);
      }
      lane = end;
    }
  }
}

// A score that a row may not see becomes NaN, which neither sums nor lists take.
void hide_ineligible(const ScoreRow& row, const Strip& strip, float* scores, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t chunk = strip.begin + i;
    if (chunk < row.begin || chunk >= row.end) scores[i] = __builtin_nanf("");
  }
}

// Adds the bias, if there is one, and takes the scores into the group maxima. Returns the largest score of every lane.
Vector finish_scores(float* scores, const float* bias, std::int64_t count, float* group_best) {
  Vector largest[kGroupVectors];
  for (int v = 0; v < kGroupVectors; ++v) largest[v] = Simd::set(kMinusInfinity);
  for (std::int64_t i = 0; i < count; i += kGroups) {
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) {
      float* at = scores + i + v * Simd::kLanes;
      Vector score = Simd::load(at);
      if (bias != nullptr) {
        score = Simd::add(score, Simd::load(bias + i + v * Simd::kLanes));
        Simd::store(at, score);
      }
      largest[v] = Simd::max(score, largest[v]);
    }
  }
  Vector all = largest[0];
  for (int v = 0; v < kGroupVectors; ++v) {
    float* at = group_best + v * Simd::kLanes;
    Simd::store(at, Simd::max(largest[v], Simd::load(at)));
    all = Simd::max(all, largest[v]);
  }
  return all;
}

// Cutting further down than to this many candidates would take more probes than it saves.
std::int64_t most_kept(std::int64_t topk) { return topk + topk / 2 + 16; }

// `count` scores, whole panels of them.
void consume_scores(const ScoreTile& tile, ScoreRow& row, const Strip& strip, float* scores, std::int64_t count) {
  if (row.begin > strip.begin || row.end < strip.begin + count) hide_ineligible(row, strip, scores, count);
  const float* bias = tile.vectors == 1 ? tile.bias + strip.begin : nullptr;
  CandidateBuffer& best = row.best;
  const Vector largest = finish_scores(scores, bias, count, best.group_best);
  add_scores(row.sum, scores, count, largest);
  if (tile.topk == 0) return;
  if (tile.topk <= kGroups && strip.raises_threshold) raise_threshold(best, tile.topk);
  if (lanes_at_least(largest, Simd::set(best.threshold)) == 0) return;
  append_candidates(best, scores, count, static_cast<std::int32_t>(strip.begin));
  if (best.held > tile.topk + tile.slack) cut_candidates(best, tile.topk, most_kept(tile.topk));
}

std::int64_t first_chunk(const ScoreTile& tile) {
  std::int64_t first = INT64_MAX;
  for (std::int64_t r = 0; r < tile.row_count; ++r) {
    const ScoreRow& row = tile.rows[r];
    if (row.begin < row.end && row.begin < first) first = row.begin;
  }
  return first;
}

std::int64_t last_chunk(const ScoreTile& tile) {
  std::int64_t end = 0;
  for (std::int64_t r = 0; r < tile.row_count; ++r) {
    const ScoreRow& row = tile.rows[r];
    if (row.begin < row.end && row.end > end) end = row.end;
  }
  return end;
}

}  // namespace

void RM_SCORE_TILE(const ScoreTile& tile) {
  const std::int64_t end = last_chunk(tile);
  Strip strip{end == 0 ? 0 : first_chunk(tile) / kPanelColumns * kPanelColumns, 0, true};
  for (std::int64_t number = 1; strip.begin < end; strip.begin = strip.end, ++number) {
    // Group maxima rise with the logarithm of the number of chunks.
    strip.raises_threshold = (number & (number - 1)) == 0;
    strip.end = strip.begin + kStripChunks < end ? strip.begin + kStripChunks : end;
    const std::int64_t active = gather_active(tile, strip);
    if (active == 0) continue;
    if (tile.vectors == 1) {
      score_strip(tile, strip, active);
    } else {
      score_strip_of_vectors(tile, strip, active);
    }
    const std::int64_t count = (strip.end - strip.begin + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
    for (std::int64_t r = 0; r < active; ++r) {
      consume_scores(tile, *tile.active[r], strip, tile.scores + r * kStripChunks, count);
    }
  }
  for (std::int64_t r = 0; r < tile.row_count; ++r) {
    ScoreRow& row = tile.rows[r];
    fold_digits(row.sum);
    cut_candidates(row.best, tile.topk, most_kept(tile.topk));
    if (row.best.held <= kMaxRanked) rank_candidates(row.best, row.order);
  }
}

}  // namespace ringmark::kernels::cpu
