#include "runtime/landmark_queries.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "core/error.h"
#include "kernels/positions/rotate.h"
#include "runtime/layer_tensors.h"

namespace ringmark::runtime {
namespace {

using kvstore::SafetensorsFile;
using kvstore::StoredTensor;

constexpr const char* kOfChunks = "chunk_landmark_q";
constexpr const char* kOfAll = "shared_landmark_q";

// Full chunks of the sequence.
std::int64_t full_chunks(const AttentionProblem& problem) {
  const std::vector<std::int64_t> starts = problem.starts();
  std::int64_t chunks = 0;
  for (std::size_t i = 1; i < starts.size(); ++i) chunks += (starts[i] - starts[i - 1]) / problem.chunk_size;
  return chunks;
}

bool is_full(const partition::SequenceGrid& grid, ChunkId chunk) {
  return grid.tokens_of(chunk).size() == grid.chunk_size();
}

std::size_t bytes_of_chunk(const AttentionProblem& problem) {
  return static_cast<std::size_t>(problem.heads * problem.head_dim * size_of(problem.dtype));
}

void expect_finite(const SafetensorsFile& file, const AttentionProblem& problem, const char* name,
                   std::span<const ChunkId> chunks, const std::vector<std::byte>& rows) {
  const std::int64_t slot = first_nonfinite_row(rows, problem.dtype, problem.heads * problem.head_dim);
  if (slot < 0) return;
  fail_in(file, fmt::format("tensor {} holds NaN or infinity at chunk {}", name,
                            chunks[static_cast<std::size_t>(slot)].value()));
}

}  // namespace

std::string_view name_of(LandmarkQuery from) {
  switch (from) {
    case LandmarkQuery::kSlot: return "slot";
    case LandmarkQuery::kChunk: return "chunk";
    case LandmarkQuery::kShared: return "shared";
  }
  return "?";
}

std::int64_t landmark_query_bytes(const AttentionProblem& problem, LandmarkQuery from, std::int64_t chunks) {
  return from == LandmarkQuery::kSlot ? 0 : chunks * static_cast<std::int64_t>(bytes_of_chunk(problem));
}

void check_landmark_queries(const SafetensorsFile& file, const AttentionProblem& problem, LandmarkQuery from) {
  if (from == LandmarkQuery::kSlot) return;
  const StoredTensor& tensor = file.tensor(from == LandmarkQuery::kChunk ? kOfChunks : kOfAll);
  std::vector<std::int64_t> shape = {problem.heads, problem.head_dim};
  if (from == LandmarkQuery::kChunk) shape.insert(shape.begin(), full_chunks(problem));
  expect_tensor(file, tensor, shape, file.tensor("q").dtype);
}

void read_landmark_queries(const SafetensorsFile& file, const AttentionProblem& problem, LandmarkQuery from,
                           const partition::SequenceGrid& grid, std::span<const ChunkId> chunks, LayerShard& shard) {
  if (from == LandmarkQuery::kSlot) return;
  const std::size_t bytes = bytes_of_chunk(problem);
  shard.landmark_q().assign(chunks.size() * bytes, std::byte{0});
  std::vector<std::byte> shared(bytes);
  if (from == LandmarkQuery::kShared) file.read_rows(file.tensor(kOfAll), {0, problem.heads}, shared);
  ChunkId next(0);
  std::int64_t full = 0;  // chunks before `next`
  for (std::size_t slot = 0; slot < chunks.size(); ++slot) {
    for (; next < chunks[slot]; ++next) full += is_full(grid, next) ? 1 : 0;
    if (!is_full(grid, chunks[slot])) continue;
    const auto row = std::span(shard.landmark_q()).subspan(slot * bytes, bytes);
    if (from == LandmarkQuery::kShared) std::copy(shared.begin(), shared.end(), row.begin());
    if (from == LandmarkQuery::kChunk) file.read_rows(file.tensor(kOfChunks), {full, full + 1}, row);
  }
  expect_finite(file, problem, from == LandmarkQuery::kChunk ? kOfChunks : kOfAll, chunks, shard.landmark_q());
}

void rotate_landmark_queries(const kernels::PositionEncoding& encoding, const partition::SequenceGrid& grid,
                             const partition::Layout& layout, RankId rank, std::span<const std::int64_t> positions,
                             LayerShard& shard, int threads) {
  const RowsView rows = shard.landmark_queries();
  if (rows.rows == 0) return;
  const std::vector<ChunkId>& chunks = layout.chunks_of(rank);
  std::vector<std::int64_t> of_last_slots;
  for (const ChunkId chunk : chunks) {
    const std::int64_t last_row = layout.first_row(chunk) + grid.tokens_of(chunk).size() - 1;
    of_last_slots.push_back(positions[static_cast<std::size_t>(last_row)]);
  }
  kernels::rotate(encoding, kernels::Side::kQuery, rows, of_last_slots, shard.landmark_q(), threads);
  const std::int64_t slot = first_nonfinite_row(shard.landmark_q(), rows.dtype, rows.heads * rows.head_dim);
  if (slot < 0) return;
  fail_bad_input(fmt::format("position encoding {}: a landmark query leaves the range of {} at chunk {}",
                             name_of(encoding.kind), name_of(rows.dtype),
                             chunks[static_cast<std::size_t>(slot)].value()));
}

}  // namespace ringmark::runtime
