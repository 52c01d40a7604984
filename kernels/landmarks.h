// Landmarks: the fixed-size summary of a chunk by which queries choose it.
//
// A landmark record is, for one chunk, fp32 and contiguous:
//     keys [landmark heads][vectors][head_dim], then bias [landmark heads].
// The score of chunk c for query i and head h is
//     s = bias + logsumexp over vectors v of (scale * q_i . key_v),  for oracle each capped first when there is a cap,
// with one vector for all but oracle (so the logsumexp is the dot product itself).
//     hils    one landmark per query head: p = softmax_j(scale q'_c.k_j), key = sum p_j k_j, bias = -sum p_j ln p_j
//     mean    one per kv head: key = mean of the chunk's keys, bias = ln(number of keys)
//     oracle  one per kv head: the chunk's keys themselves, bias = 0, so that s is the exact log mass of the chunk;
//             vectors = chunk_size, unused vectors (landmark slot, sinks) are marked by a first element of +inf
//     landmark one per kv head: the key at the chunk's landmark slot, bias = 0
//     quest   one per kv head: the largest, then the least of each component of the chunk's keys, bias = 0; these 2 d
//             components meet a query's parts above and below 0, so that
//             s = scale sum_x max(q_x least_x, q_x largest_x): no key of the chunk has a larger logit
// j runs over SequenceGrid::keys_of(c). Source: docs/numerics.md, "Landmarks".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

struct LandmarkShape {
  std::int64_t heads = 0;     // landmark heads: H (hils) or Hkv (the others)
  std::int64_t vectors = 1;   // keys a landmark
  std::int64_t head_dim = 0;  // components of a key: d, 2 d for quest
  float logit_cap = 0.0f;     // of the oracle, whose products are the logits themselves; 0: none

  static LandmarkShape of(const AttentionProblem& problem, Scorer scorer);
  std::int64_t record_floats() const { return heads * (vectors * head_dim + 1); }
  std::int64_t bias_offset() const { return heads * vectors * head_dim; }
  // The landmark head that serves query head h of `query_heads`.
  std::int64_t head_of(std::int64_t head, std::int64_t query_heads) const { return head / (query_heads / heads); }
};

// Writes the record of every listed chunk that has a landmark; records of the others are left alone.
//
// chunks         the chunks to summarise, all present in `blocks`
// landmark_rows  [chunks.size(), H, d]: landmark query of each listed chunk (hils only; may be empty otherwise)
// records        chunks.size() records
void build_landmarks(const AttentionProblem& problem, Scorer scorer, const partition::SequenceGrid& grid,
                     std::span<const ChunkId> chunks, const RowsView& landmark_rows, const BlockTable& blocks,
                     std::span<float> records, int threads);

// Landmarks of an ascending list of chunks, repacked for scoring: panels of kPanel chunks, head_dim-major, so that one
// vector register holds the same component of consecutive chunks. Chunks of a layer that grows have a place from the
// start and a record later; until then nothing may score them.
class PackedLandmarks {
 public:
  static constexpr std::int64_t kPanel = 32;

  // chunks: ascending, all with a landmark; none of them has its record yet.
  PackedLandmarks(LandmarkShape shape, std::vector<ChunkId> chunks);
  // records: one per chunk.
  PackedLandmarks(LandmarkShape shape, std::vector<ChunkId> chunks, std::span<const float> records);

  const LandmarkShape& shape() const { return shape_; }
  const std::vector<ChunkId>& chunks() const { return chunks_; }
  // The record of the chunk at a position of chunks(), once.
  void set(std::int64_t position, std::span<const float> record);
  std::int64_t panels() const { return panels_; }  // kPanel lanes each; lanes = chunks x vectors, padded
  // [head_dim][kPanel]; lanes past the end are zero.
  const float* panel(std::int64_t landmark_head, std::int64_t panel) const {
    return keys_[static_cast<std::size_t>((landmark_head * panels_ + panel) * shape_.head_dim)].lanes;
  }
  // [kPanel]; -inf in lanes past the end and for unused oracle vectors.
  const float* bias(std::int64_t landmark_head, std::int64_t panel) const {
    return bias_[static_cast<std::size_t>(landmark_head * panels_ + panel)].lanes;
  }

 private:
  // One component of the chunks of a panel, on cache lines of its own: unaligned loads cost the product 6 percent.
  struct alignas(64) PanelRow {
    float lanes[kPanel];
  };

  void set(std::int64_t head, std::int64_t position, std::span<const float> record);

  LandmarkShape shape_;
  std::vector<ChunkId> chunks_;
  std::int64_t panels_ = 0;
  std::vector<PanelRow> keys_;
  std::vector<PanelRow> bias_;
};

}  // namespace ringmark::kernels
