// The inner loops of the attention kernels, compiled once an instruction set: packing of a chunk's keys and values into
// panels, and what a set of rows gathers from one packed chunk. Raw pointers only; a row here is one (query, head).
// What a row gets depends on the row and the chunk alone, never on the rows beside it, and not on the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace ringmark::kernels::cpu {

constexpr std::int64_t kPanelWidth = 32;  // columns of a panel
constexpr std::int64_t kRowPadding = 16;  // floats that softmax may touch past a row's end: the virtual lanes

// Static: these run in files of both instruction sets, and the linker must not share one copy between them.
static constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

// Components of a key panel: 8x8 transposes fill whole groups of eight.
static constexpr std::int64_t panel_depth(std::int64_t head_dim) { return round_up(head_dim, 8); }

// Rows of `head_dim` elements in storage precision, `stride` bytes apart.
struct StoredRows {
  const std::byte* first = nullptr;
  std::int64_t stride = 0;
  DType dtype = DType::kFloat32;
};

// The leading keys of one (chunk, kv head), widened to fp32.
struct PackedChunk {
  const float* keys = nullptr;    // [key panel][panel_depth][32 keys]; columns past the last key are zero
  const float* values = nullptr;  // [column panel][count][32 columns]; columns past head_dim are zero
  std::int64_t count = 0;         // keys
  std::int64_t head_dim = 0;
  bool finite_values = true;
};

// Where the rows of a tile stand. Query rows are scaled.
struct TileRows {
  const float* queries = nullptr;  // [rows][head_dim]
  float* out = nullptr;            // [rows][out_stride], unnormalised
  std::int64_t out_stride = 0;     // head_dim rounded up to whole panels
  float* top = nullptr;            // [rows] largest score so far (online softmax only)
  float* sum = nullptr;            // [rows] sum of e^(score - top) so far (online softmax only)
};

// Rows of a tile that see some key of a chunk: row rows[i] the keys [first[i], end[i]), of which there is one.
struct RowSights {
  const std::int32_t* rows = nullptr;
  const std::int32_t* first = nullptr;
  const std::int32_t* end = nullptr;
  const std::int64_t* distances = nullptr;  // i - j of the row and the chunk's key 0, below 2^40; null without slopes
  std::int64_t count = 0;
};

// What makes logits of products, in this order (docs/numerics.md, "Logits").
struct LogitRule {
  float cap = 0.0f;               // above 0: cap tanh(product / cap)
  const float* slopes = nullptr;  // [rows of the tile] ALiBi: less slope (i - j); null: none
};

struct TileKernels {
  // out[r][0, head_dim) = scale * row r.
  void (*widen_rows)(const StoredRows& rows, std::int64_t count, std::int64_t head_dim, float scale, float* out);
  // panels [count / 32][panel_depth][32] = scale * rows, transposed, zero past `count`. widened: 32 x panel_depth.
  void (*pack_columns)(const StoredRows& rows, std::int64_t count, std::int64_t head_dim, float scale, float* widened,
                       float* panels);
  // panels [head_dim / 32][count][32] = rows, zero past head_dim. False when some element is not finite.
  bool (*pack_values)(const StoredRows& rows, std::int64_t count, std::int64_t head_dim, float* panels);
  // products[a][0, 32) = rows[a] . columns of a panel.
  void (*multiply)(const float* const* rows, std::int64_t count, std::int64_t depth, const float* panel,
                   float* products);
  // scores [count][32]: top and sum of e^(score - top) of every column.
  void (*sum_columns)(const float* scores, std::int64_t count, float* top, float* sum);
  // Scores become e^(score - top); returns their sum, and 0 when every score is -inf. The row needs kRowPadding.
  float (*exponentiate)(float* scores, std::int64_t count, float* top);
  // scores [count], a multiple of kPanelWidth, become cap tanh(score / cap); cap above 0.
  void (*cap_scores)(float* scores, std::int64_t count, float cap);
  // Online softmax over one more chunk. scores: score_floats(chunk size).
  void (*attend_online)(const PackedChunk& chunk, const RowSights& sights, const TileRows& tile, const LogitRule& rule,
                        float* scores);
  // out += weight[i] * (softmax over all keys of the chunk) . values; the logits capped where `cap` is above 0.
  void (*attend_weighted)(const PackedChunk& chunk, const std::int32_t* rows, const float* weights, std::int64_t count,
                          const TileRows& tile, float cap, float* scores);
};

// Scratch of the attend functions: the scores of the rows that one product takes.
static constexpr std::int64_t score_floats(std::int64_t chunk_size) { return 14 * round_up(chunk_size, kPanelWidth); }

extern const TileKernels kTileKernelsAvx2;
extern const TileKernels kTileKernelsAvx512;

// Those of active_isa().
const TileKernels& tile_kernels();

}  // namespace ringmark::kernels::cpu
