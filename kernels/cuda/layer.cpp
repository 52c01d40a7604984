#include "kernels/cuda/layer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "core/error.h"
#include "kernels/cuda/row_geometry.h"

namespace ringmark::kernels::cuda {

LayerShape LayerShape::of(const AttentionProblem& problem, const AttentionPolicy& policy,
                          const partition::SequenceGrid& grid) {
  policy.expect_usual_choice("the kernels of a GPU");
  if (const std::string field = beyond_plain_logits(problem, policy); !field.empty()) {
    fail_bad_input(field + " is not known to the kernels of the GPU; limit: backend cpu or reference");
  }
  const LandmarkShape landmarks = LandmarkShape::of(problem, policy.scorer);
  LayerShape shape;
  shape.heads = static_cast<std::int32_t>(problem.heads);
  shape.kv_heads = static_cast<std::int32_t>(problem.kv_heads);
  shape.group = static_cast<std::int32_t>(problem.group());
  shape.head_dim = static_cast<std::int32_t>(problem.head_dim);
  shape.chunk_size = static_cast<std::int32_t>(problem.chunk_size);
  shape.topk = static_cast<std::int32_t>(policy.selects() ? policy.topk : 0);
  shape.chunk_count = static_cast<std::int32_t>(grid.chunk_count());
  shape.landmark_heads = static_cast<std::int32_t>(landmarks.heads);
  shape.landmark_vectors = static_cast<std::int32_t>(landmarks.vectors);
  shape.dtype = problem.dtype;
  shape.scorer = policy.scorer;
  shape.scale = problem.scale;
  return shape;
}

namespace {

RowGeometry geometry_of(const partition::SequenceGrid& grid, TokenId token) {
  const auto index = [](ChunkId chunk) { return static_cast<std::int32_t>(chunk.value()); };
  const ChunkId chunk = grid.chunk_of(token);
  const Range<TokenId> sinks = grid.sinks_of(token);
  const Range<ChunkId> eligible = grid.eligible(token);
  RowGeometry row;
  row.chunk = index(chunk);
  row.visible = static_cast<std::int32_t>(token - grid.tokens_of(chunk).begin + 1);
  row.window_first = index(grid.chunk_of(grid.window_of(token).begin));
  if (!sinks.empty()) {
    row.sink_first = index(grid.chunk_of(sinks.begin));
    row.sink_last = index(grid.chunk_of(sinks.end - 1)) + 1;
  }
  row.eligible_first = index(eligible.begin);
  row.eligible_end = index(eligible.end);
  return row;
}

// Of rows of one chunk.
bool differ_in_visible_alone(const RowGeometry& a, RowGeometry b) {
  b.visible = a.visible;
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace

std::vector<RowGeometry> row_geometry(const partition::SequenceGrid& grid, std::span<const TokenId> tokens) {
  std::vector<RowGeometry> rows;
  rows.reserve(tokens.size());
  for (const TokenId token : tokens) rows.push_back(geometry_of(grid, token));
  return rows;
}

// Within a chunk no bound falls from one row to the next, so rows between two of equal geometry have it too.
std::vector<RowRun> row_runs(const partition::SequenceGrid& grid, const partition::Layout& layout, RankId rank) {
  std::vector<RowRun> runs;
  for (const ChunkId chunk : layout.chunks_of(rank)) {
    if (!layout.has_rows(chunk)) continue;
    const Range<TokenId> tokens = grid.tokens_of(chunk);
    for (TokenId token = tokens.begin; token < tokens.end;) {
      const RowGeometry first = geometry_of(grid, token);
      TokenId like_first = token, other = tokens.end;  // the last known to be, the first known not to be
      while (other - like_first > 1) {
        // The end of the chunk first: most runs reach it.
        const TokenId middle =
            like_first == token && other == tokens.end ? other - 1 : like_first + (other - like_first) / 2;
        (differ_in_visible_alone(first, geometry_of(grid, middle)) ? like_first : other) = middle;
      }
      runs.push_back({first, layout.first_row(chunk) + (token - tokens.begin), other - token});
      token = other;
    }
  }
  return runs;
}

std::vector<ChunkGeometry> chunk_geometry(const partition::SequenceGrid& grid, const AttentionPolicy& policy) {
  std::vector<ChunkGeometry> chunks(static_cast<std::size_t>(grid.chunk_count()));
  for (ChunkId chunk(0); chunk.value() < grid.chunk_count(); ++chunk) {
    const Range<TokenId> slots = grid.tokens_of(chunk), keys = grid.keys_of(chunk);
    const auto slot = [&](TokenId token) { return static_cast<std::int16_t>(token - slots.begin); };
    const TokenId sinks_end = grid.document_of(chunk).tokens.begin + policy.sinks;
    // Only the last slot of a full chunk can be no key.
    const TokenId keys_end = !slots.empty() && !grid.is_key(slots.end - 1) ? slots.end - 1 : slots.end;
    ChunkGeometry& geometry = chunks[static_cast<std::size_t>(chunk.value())];
    geometry.key_begin = slot(keys.begin);
    geometry.key_end = slot(keys.end);
    geometry.slots_end = slot(keys_end);
    geometry.sink_end = slot(std::clamp(sinks_end, slots.begin, keys_end));
  }
  return chunks;
}

bool has_tensor_kernels(const LayerShape& shape) {
  const bool dtype = shape.dtype == DType::kBfloat16 || shape.dtype == DType::kFloat16;
  const bool group = std::has_single_bit(static_cast<std::uint32_t>(shape.group)) && shape.group <= 16;
  return dtype && group && (shape.head_dim == 64 || shape.head_dim == 128) && shape.chunk_size == 64 &&
         shape.landmark_vectors == 1 && shape.scorer != Scorer::kOracle && shape.topk <= kMaxTensorTopk;
}

Path choose_path(const LayerShape& shape) {
  if (!has_tensor_kernels(shape)) return Path::kSimt;
  int device = 0, major = 0;
  ringmark::cuda::check(cudaGetDevice(&device), "ask for the device");
  ringmark::cuda::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                        "ask for the compute capability");
  // wgmma exists in compute capability 9 alone; later chips run what was built for 8.0 and 9.0 through neither.
  return major == 9 ? Path::kHopper : Path::kMma;
}

Path resolve_path(std::optional<Path> asked, const LayerShape& shape) {
  if (!asked) return choose_path(shape);
  if (*asked != Path::kSimt && !has_tensor_kernels(shape)) {
    fail_bad_input(std::string("kernels = ") + name_of(*asked) +
                   " do not take this layer; limit: bf16 or fp16, head_dim 64 or 128, chunk 64, 1, 2, 4, 8 or 16 query "
                   "heads a kv head, topk up to 64, scorer hils, mean or none");
  }
  return *asked;
}

}  // namespace ringmark::kernels::cuda
