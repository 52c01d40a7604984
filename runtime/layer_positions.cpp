#include "runtime/layer_positions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "core/error.h"
#include "kernels/positions/rotate.h"
#include "kernels/positions/slot_position.h"
#include "runtime/layer_tensors.h"

namespace ringmark::runtime {
namespace {

struct Rotation {
  const kernels::PositionEncoding& encoding;
  kernels::Side side;
  const char* name;  // of what is rotated
  std::span<const TokenId> tokens;
  std::span<const std::int64_t> positions;
  int threads;
};

void rotate_tensor(const Rotation& rotation, const RowsView& rows, std::vector<std::byte>& out) {
  kernels::rotate(rotation.encoding, rotation.side, rows, rotation.positions, out, rotation.threads);
  const std::int64_t row = first_nonfinite_row(out, rows.dtype, rows.heads * rows.head_dim);
  if (row < 0) return;
  fail_bad_input(fmt::format("position encoding {}: {} leaves the range of {} at token {}",
                             name_of(rotation.encoding.kind), rotation.name, name_of(rows.dtype),
                             rotation.tokens[static_cast<std::size_t>(row)].value()));
}

}  // namespace

std::vector<std::int64_t> positions_in_documents(const AttentionProblem& problem, std::span<const TokenId> tokens) {
  const std::vector<std::int64_t> starts = problem.starts();
  std::vector<std::int64_t> positions;
  positions.reserve(tokens.size());
  for (const TokenId token : tokens) {
    const std::int64_t start = *(std::upper_bound(starts.begin(), starts.end(), token.value()) - 1);
    positions.push_back(kernels::position_of_slot(token.value() - start, problem.chunk_size, problem.landmark_slots));
  }
  return positions;
}

void check_encoding(const kernels::PositionEncoding& encoding, const AttentionProblem& problem, bool own_positions) {
  encoding.validate(problem.head_dim);
  if (own_positions) return;
  const std::vector<std::int64_t> starts = problem.starts();
  std::int64_t longest = 0;
  for (std::size_t i = 1; i < starts.size(); ++i) longest = std::max(longest, starts[i] - starts[i - 1]);
  const std::int64_t last = kernels::position_of_slot(longest - 1, problem.chunk_size, problem.landmark_slots);
  kernels::check_positions(encoding, problem.dtype, std::array{last});
}

void rotate_rows(const kernels::PositionEncoding& encoding, std::span<const TokenId> tokens,
                 std::span<const std::int64_t> positions, LayerShard& shard, int threads) {
  const auto rotate = [&](const char* name, kernels::Side side, const RowsView& rows, std::vector<std::byte>& bytes) {
    rotate_tensor({encoding, side, name, tokens, positions, threads}, rows, bytes);
  };
  rotate("q", kernels::Side::kQuery, shard.queries(), shard.q());
  rotate("k", kernels::Side::kKey, shard.keys(), shard.k());
  // Without retrieval queries of its own the shard gives out its queries.
  if (!shard.retrieval_q().empty()) {
    rotate("landmark_q", kernels::Side::kQuery, shard.retrieval_queries(), shard.retrieval_q());
  }
}

void make_sink_queries(const kernels::PositionEncoding& encoding, const AttentionProblem& problem,
                       const partition::SequenceGrid& grid, std::span<const TokenId> tokens, LayerShard& shard,
                       int threads) {
  std::vector<std::int64_t> positions = positions_in_documents(problem, tokens);
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const TokenId start = grid.document_of(tokens[row]).tokens.begin;
    const auto position_of = [&](TokenId token) {
      return kernels::position_of_slot(token - start, problem.chunk_size, problem.landmark_slots);
    };
    positions[row] -= position_of(grid.window_of(tokens[row]).begin) - position_of(grid.sinks_of(tokens[row]).end);
  }
  rotate_tensor({encoding, kernels::Side::kQuery, "q at its place in the cache", tokens, positions, threads},
                shard.queries(), shard.sink_q());
}

}  // namespace ringmark::runtime
