// What a set of rows gathers from one packed chunk: scores, softmax, values. Rows go through the three steps in blocks
// of one register tile, so that the scores never leave the first cache level. Included after a simd header.
#pragma once

#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/attend_tile_pack.inl"
#include "kernels/cpu/attend_tile_softmax.inl"
#include "kernels/cpu/logit_cap.inl"
#include "kernels/cpu/panel_product.h"

namespace {

using ringmark::kernels::cpu::kPanelWidth;
using ringmark::kernels::cpu::LogitRule;
using ringmark::kernels::cpu::PackedChunk;
using ringmark::kernels::cpu::round_up;
using ringmark::kernels::cpu::RowSights;
using ringmark::kernels::cpu::score_floats;
using ringmark::kernels::cpu::TileRows;

static_assert(kPanelWidth == kPanelColumns);
static_assert(score_floats(1) >= Simd::kTileRows * kPanelColumns);

// Rows that go through one register tile together.
struct RowBlock {
  const float* queries[Simd::kTileRows];
  const float* weights[Simd::kTileRows];  // their scores, then e^score, from key `begin` on
  float* out[Simd::kTileRows];
  int rows = 0;
  std::int64_t begin = 0;  // keys that some row of the block sees
  std::int64_t end = 0;
};

void multiply(const float* const* rows, std::int64_t count, std::int64_t depth, const float* panel, float* products) {
  multiply_panel<Accumulate::kFromZero>(rows, count, depth, panel, products, kPanelColumns);
}

void place_rows(const std::int32_t* rows, const TileRows& tile, std::int64_t head_dim, const float* scores,
                std::int64_t score_stride, RowBlock& block) {
  for (int r = 0; r < block.rows; ++r) {
    block.queries[r] = tile.queries + rows[r] * head_dim;
    block.weights[r] = scores + r * score_stride + block.begin;
    block.out[r] = tile.out + rows[r] * tile.out_stride;
  }
}

void multiply_keys(const PackedChunk& chunk, const RowBlock& block, float* scores, std::int64_t score_stride) {
  const std::int64_t panel_floats = panel_depth(chunk.head_dim);
  for (std::int64_t first = 0; first < block.end; first += kPanelColumns) {
    multiply_panel<Accumulate::kFromZero>(block.queries, block.rows, chunk.head_dim, chunk.keys + first * panel_floats,
                                          scores + first, score_stride);
  }
}

enum class Mix {
  kRescaleOut,  // out = factor * out + term
  kScaleTerm,   // out = out + factor * term
};

// The product is formed from zero beside the rows and mixed in afterwards: rows may be scattered, and the rescaling of
// the online softmax costs no pass of its own.
template <Mix kMix>
void mix_values(const PackedChunk& chunk, const RowBlock& block, const float* factors) {
  alignas(64) float term[Simd::kTileRows * kPanelColumns];
  for (std::int64_t column = 0; column < chunk.head_dim; column += kPanelColumns) {
    const float* values = chunk.values + column * chunk.count + block.begin * kPanelColumns;
    multiply_panel<Accumulate::kFromZero>(block.weights, block.rows, block.end - block.begin, values, term,
                                          kPanelColumns);
    for (int r = 0; r < block.rows; ++r) {
      const Simd::V factor = Simd::set(factors[r]);
      for (int lane = 0; lane < kPanelColumns; lane += Simd::kLanes) {
        float* out = block.out[r] + column + lane;
        const Simd::V product = Simd::load(term + r * kPanelColumns + lane);
        const Simd::V old = Simd::load(out);
        Simd::store(out,
                    kMix == Mix::kRescaleOut ? Simd::fmadd(old, factor, product) : Simd::fmadd(product, factor, old));
      }
    }
  }
}

// As many rows as fit a register tile. Rows that see fewer keys than their neighbours take part with zero weights; that
// is exact only while 0 x value is 0, so with a value that is not finite only rows of equal sight go together.
int rows_of_block(const PackedChunk& chunk, const RowSights& sights) {
  const auto together = [&](int row) {
    return chunk.finite_values || (sights.first[row] == sights.first[0] && sights.end[row] == sights.end[0]);
  };
  int rows = 1;
  while (rows < sights.count && rows < Simd::kTileRows && together(rows)) ++rows;
  return rows;
}

// Those from row i on.
RowSights sights_from(const RowSights& sights, std::int64_t i) {
  const std::int64_t* distances = sights.distances == nullptr ? nullptr : sights.distances + i;
  return {sights.rows + i, sights.first + i, sights.end + i, distances, sights.count - i};
}

// Logits less slope (distance - key). The distance to a key is rounded once, from a whole number: its part that fp32
// holds, and the rest less the key, which is exact.
void add_alibi(float* scores, std::int64_t count, float slope, std::int64_t distance) {
  const auto rounded = static_cast<float>(distance);
  const Simd::V high = Simd::set(rounded);
  const Simd::V low = Simd::set(static_cast<float>(distance - static_cast<std::int64_t>(rounded)));
  const Simd::V factor = Simd::set(-slope);
  for (std::int64_t i = 0; i < count; i += Simd::kLanes) {
    const Simd::V key = Simd::add(Simd::load(kLaneIndex), Simd::set(static_cast<float>(i)));
    const Simd::V away = Simd::add(high, Simd::sub(low, key));
    Simd::store(scores + i, Simd::fmadd(factor, away, Simd::load(scores + i)));
  }
}

// Products of the block's rows become logits.
void make_logits(const RowBlock& block, const RowSights& sights, const LogitRule& rule, float* scores,
                 std::int64_t score_stride) {
  for (int r = 0; r < block.rows; ++r) {
    float* row = scores + r * score_stride;
    const std::int64_t count = round_up(sights.end[r], kVirtualLanes);
    if (rule.cap > 0.0f) cap_scores(row, count, rule.cap);
    if (rule.slopes != nullptr) add_alibi(row, count, rule.slopes[sights.rows[r]], sights.distances[r]);
  }
}

// One step of the online softmax for a block: weights from scores, and the factors of what the rows have so far.
void renew_softmax(const RowBlock& block, const RowSights& sights, const TileRows& tile, float* scores,
                   std::int64_t score_stride, float* rescale) {
  alignas(64) float old_top[kVirtualLanes] = {};
  alignas(64) float base[kVirtualLanes] = {};
  for (int r = 0; r < block.rows; ++r) {
    float* row = scores + r * score_stride;
    for (std::int64_t i = 0; i < sights.first[r]; ++i) row[i] = -kInfinity;
    float& top = tile.top[sights.rows[r]];
    const float high = largest(row, sights.end[r]);
    old_top[r] = top;
    top = top > high ? top : high;
    base[r] = base_of(top);
  }
  for (int lane = 0; lane < kVirtualLanes; lane += Simd::kLanes) {
    Simd::store(rescale + lane, exponential(Simd::load(old_top + lane), Simd::load(base + lane)));
  }
  for (int r = 0; r < block.rows; ++r) {
    float* weights = scores + r * score_stride;
    float& sum = tile.sum[sights.rows[r]];
    sum = __builtin_fmaf(sum, rescale[r], exponentiate_from(base[r], weights, sights.end[r]));
    const std::int64_t written = round_up(sights.end[r], kVirtualLanes);
    zero_floats(weights + written, block.end - written);
  }
}

void attend_online(const PackedChunk& chunk, const RowSights& all, const TileRows& tile, const LogitRule& rule,
                   float* scores) {
  const std::int64_t score_stride = round_up(chunk.count, kPanelColumns);
  const bool makes_logits = rule.cap > 0.0f || rule.slopes != nullptr;
  RowBlock block;
  for (std::int64_t i = 0; i < all.count; i += block.rows) {
    const RowSights sights = sights_from(all, i);
    block.rows = rows_of_block(chunk, sights);
    block.begin = sights.first[0];
    block.end = sights.end[0];
    for (int r = 1; r < block.rows; ++r) {
      block.begin = sights.first[r] < block.begin ? sights.first[r] : block.begin;
      block.end = sights.end[r] > block.end ? sights.end[r] : block.end;
    }
    place_rows(sights.rows, tile, chunk.head_dim, scores, score_stride, block);
    multiply_keys(chunk, block, scores, score_stride);
    if (makes_logits) make_logits(block, sights, rule, scores, score_stride);
    alignas(64) float rescale[kVirtualLanes];
    renew_softmax(block, sights, tile, scores, score_stride, rescale);
    mix_values<Mix::kRescaleOut>(chunk, block, rescale);
  }
}

void attend_weighted(const PackedChunk& chunk, const std::int32_t* rows, const float* weights, std::int64_t count,
                     const TileRows& tile, float cap, float* scores) {
  const std::int64_t score_stride = round_up(chunk.count, kPanelColumns);
  RowBlock block;
  block.end = chunk.count;
  for (std::int64_t i = 0; i < count; i += block.rows) {
    block.rows = count - i < Simd::kTileRows ? static_cast<int>(count - i) : Simd::kTileRows;
    place_rows(rows + i, tile, chunk.head_dim, scores, score_stride, block);
    multiply_keys(chunk, block, scores, score_stride);
    if (cap > 0.0f) cap_scores(scores, block.rows * score_stride, cap);
    float factor[Simd::kTileRows];
    for (int r = 0; r < block.rows; ++r) {
      float top;
      const float sum = exponentiate(scores + r * score_stride, chunk.count, &top);
      factor[r] = sum == 0.0f ? 0.0f : weights[i + r] / sum;
    }
    mix_values<Mix::kScaleTerm>(chunk, block, factor);
  }
}

}  // namespace
