#include "kernels/cpu/chunk_readers.h"

#include <algorithm>
#include <cstddef>

namespace ringmark::kernels::cpu {
namespace {

// The chosen chunks of a row that lie in a range.
std::span<const std::int32_t> chosen_within(std::span<const std::int32_t> chosen, Range<ChunkId> chunks) {
  const auto below = [](std::int32_t chunk, ChunkId end) { return chunk < end.value(); };
  const auto first = std::lower_bound(chosen.begin(), chosen.end(), chunks.begin, below);
  return {first, std::lower_bound(first, chosen.end(), chunks.end, below)};
}

}  // namespace

ChunkReaders::ChunkReaders(const BackwardRows& rows, Range<ChunkId> chunks, int threads)
    : chunks_(chunks), choosers_(static_cast<std::size_t>(rows.selection.topk > 0 ? rows.problem.kv_heads : 0)) {
  for (ChunkId chunk = chunks.begin; chunk < chunks.end; ++chunk) nearby_.push_back(find_nearby(rows, chunk));
  const auto kv_heads = static_cast<std::int64_t>(choosers_.size());
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) find_choosers(rows.selection, kv_head);
}

// Rows ascend by token, and so do the beginnings of their windows.
ChunkReaders::Nearby ChunkReaders::find_nearby(const BackwardRows& rows, ChunkId chunk) const {
  const partition::SequenceGrid& grid = rows.grid;
  const Range<TokenId> slots = grid.tokens_of(chunk);
  const Range<TokenId> document = grid.document_of(chunk).tokens;
  const auto first_with = [&](auto from, auto&& holds) {
    return std::partition_point(from, rows.tokens.end(), [&](TokenId token) { return !holds(token); });
  };
  const auto begin = first_with(rows.tokens.begin(), [&](TokenId token) { return token >= slots.begin; });
  const auto document_end = first_with(begin, [&](TokenId token) { return token >= document.end; });
  const auto end = std::partition_point(begin, document_end,
                                        [&](TokenId token) { return grid.window_of(token).begin <= slots.begin; });
  const auto row = [&](auto at) { return static_cast<std::int64_t>(at - rows.tokens.begin()); };
  const bool landmark = rows.problem.landmark_slots && slots.size() == rows.problem.chunk_size;
  Nearby nearby{slots.begin, slots.size() - (landmark ? 1 : 0), {row(begin), row(end)}, {row(end), row(end)}};
  if (end == document_end) return nearby;
  nearby.sink_keys = std::clamp<std::int64_t>(grid.sinks_of(*end).end - slots.begin, 0, nearby.keys);
  if (nearby.sink_keys > 0) nearby.sinks.end = row(document_end);
  return nearby;
}

void ChunkReaders::find_choosers(const Selection& selection, std::int64_t kv_head) {
  Choosers& choosers = choosers_[static_cast<std::size_t>(kv_head)];
  const auto chosen = [&](std::int64_t row) { return chosen_within(selection.chosen(row, kv_head), chunks_); };
  const auto place = [&](std::int32_t chunk) { return static_cast<std::size_t>(ChunkId(chunk) - chunks_.begin); };
  choosers.begins.assign(static_cast<std::size_t>(chunks_.size()) + 1, 0);
  for (std::int64_t row = 0; row < selection.rows; ++row) {
    for (const std::int32_t chunk : chosen(row)) ++choosers.begins[place(chunk) + 1];
  }
  for (std::size_t n = 1; n < choosers.begins.size(); ++n) choosers.begins[n] += choosers.begins[n - 1];
  choosers.rows.resize(static_cast<std::size_t>(choosers.begins.back()));
  std::vector<std::int64_t> next(choosers.begins.begin(), choosers.begins.end() - 1);
  for (std::int64_t row = 0; row < selection.rows; ++row) {
    for (const std::int32_t chunk : chosen(row)) choosers.rows[static_cast<std::size_t>(next[place(chunk)]++)] = row;
  }
}

std::span<const std::int64_t> ChunkReaders::chosen_by(ChunkId chunk, std::int64_t kv_head, RowRange rows) const {
  if (choosers_.empty()) return {};
  const Choosers& choosers = choosers_[static_cast<std::size_t>(kv_head)];
  const auto n = static_cast<std::size_t>(chunk - chunks_.begin);
  const auto begin = choosers.rows.begin() + choosers.begins[n];
  const auto end = choosers.rows.begin() + choosers.begins[n + 1];
  return {std::lower_bound(begin, end, rows.begin), std::lower_bound(begin, end, rows.end)};
}

}  // namespace ringmark::kernels::cpu
