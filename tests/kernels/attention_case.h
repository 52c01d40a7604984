// A random attention problem in memory: queries, blocks and their fp64 values, with NaN in every slot that no kernel
// may let through: landmark slots and what lies behind a partial chunk.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "kernels/positions/alibi.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline std::vector<float> normal_floats(std::mt19937_64& random, std::int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// [rows, heads, head_dim] in storage precision.
class StoredTensor {
 public:
  StoredTensor(DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
               const std::vector<float>& values)
      : bytes_(values.size() * static_cast<std::size_t>(size_of(dtype))),
        view_{bytes_.data(), dtype, rows, heads, head_dim} {
    narrow(values.data(), dtype, static_cast<std::int64_t>(values.size()), bytes_.data());
  }
  StoredTensor(const StoredTensor&) = delete;
  StoredTensor& operator=(const StoredTensor&) = delete;

  const RowsView& view() const { return view_; }
  std::vector<float> row(std::int64_t row, std::int64_t head) const {
    std::vector<float> values(static_cast<std::size_t>(view_.head_dim));
    view_.load(row, head, values.data());
    return values;
  }

 private:
  std::vector<std::byte> bytes_;
  RowsView view_;
};

// Keys and values [tokens, kv_heads, head_dim] laid out in blocks.
class StoredBlocks {
 public:
  StoredBlocks(const AttentionProblem& problem, const partition::SequenceGrid& grid, const std::vector<float>& keys,
               const std::vector<float>& values)
      : table_(BlockShape::of(problem), grid.chunk_count(), problem.kv_heads) {
    const BlockShape shape = table_.shape();
    const std::vector<float> unread(static_cast<std::size_t>(shape.chunk_size * 2 * shape.head_dim), kNaN);
    bytes_.resize(static_cast<std::size_t>(grid.chunk_count() * problem.kv_heads * shape.bytes()));
    std::byte* block = bytes_.data();
    for (ChunkId chunk(0); chunk.value() < grid.chunk_count(); ++chunk) {
      for (std::int64_t head = 0; head < problem.kv_heads; ++head, block += shape.bytes()) {
        narrow(unread.data(), shape.dtype, static_cast<std::int64_t>(unread.size()), block);
        const Range<TokenId> slots = grid.tokens_of(chunk);
        for (TokenId token = slots.begin; token < slots.end; ++token) {
          if (!grid.is_key(token)) continue;
          const std::int64_t from = (token.value() * problem.kv_heads + head) * shape.head_dim;
          std::byte* slot = block + (token - slots.begin) * shape.row_bytes();
          narrow(keys.data() + from, shape.dtype, shape.head_dim, slot);
          narrow(values.data() + from, shape.dtype, shape.head_dim, slot + shape.value_offset());
        }
        table_.set(chunk, head, block);
      }
    }
  }
  StoredBlocks(const StoredBlocks&) = delete;
  StoredBlocks& operator=(const StoredBlocks&) = delete;

  const BlockTable& table() const { return table_; }

 private:
  std::vector<std::byte> bytes_;
  BlockTable table_;
};

// Results of all rows; NaN until written.
struct Results {
  Results(const AttentionProblem& problem, std::int64_t rows)
      : shape{rows, problem.heads, problem.head_dim},
        out(static_cast<std::size_t>(rows * problem.heads * problem.head_dim), kNaN),
        lse(static_cast<std::size_t>(rows * problem.heads), kNaN) {}

  TensorView<float, 3> out_view() { return {out.data(), shape}; }
  TensorView<float, 2> lse_view() { return {lse.data(), {shape[0], shape[1]}}; }

  std::array<std::int64_t, 3> shape;
  std::vector<float> out;
  std::vector<float> lse;
};

struct AttentionCase {
  AttentionCase(const AttentionProblem& p, const AttentionPolicy& wanted, std::uint64_t seed)
      : problem(p),
        policy(wanted),
        grid(problem, policy),
        random(seed),
        queries(p.dtype, p.tokens, p.heads, p.head_dim, normal_floats(random, p.tokens * p.heads * p.head_dim)),
        keys(p.dtype, p.tokens, p.kv_heads, p.head_dim, normal_floats(random, p.tokens * p.kv_heads * p.head_dim)),
        values(p.dtype, p.tokens, p.kv_heads, p.head_dim, normal_floats(random, p.tokens * p.kv_heads * p.head_dim)),
        blocks(problem, grid, all_rows(keys), all_rows(values)) {
    for (std::int64_t token = 0; token < p.tokens; ++token) tokens.emplace_back(token);
  }

  static std::vector<float> all_rows(const StoredTensor& tensor) {
    const RowsView& view = tensor.view();
    std::vector<float> rows(static_cast<std::size_t>(view.rows * view.heads * view.head_dim));
    widen(view.data, view.dtype, static_cast<std::int64_t>(rows.size()), rows.data());
    return rows;
  }

  RowRange all() const { return {0, problem.tokens}; }

  AttentionProblem problem;
  AttentionPolicy policy;
  partition::SequenceGrid grid;
  std::mt19937_64 random;
  StoredTensor queries;
  StoredTensor keys;
  StoredTensor values;
  StoredBlocks blocks;
  std::vector<TokenId> tokens;
};

// Softmax attention of one query head over a list of keys, in fp64.
struct ExactRow {
  std::vector<double> out;
  double lse = -std::numeric_limits<double>::infinity();
};

inline double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (std::size_t k = 0; k < a.size(); ++k) sum += double{a[k]} * double{b[k]};
  return sum;
}

// What the problem makes of the product of query and key.
inline double exact_logit(const AttentionCase& c, double product, std::int64_t head, std::int64_t distance) {
  const double cap = c.problem.logit_cap;
  const double logit = double{c.problem.scale} * product;
  const double capped = cap > 0.0 ? cap * std::tanh(logit / cap) : logit;
  if (!c.problem.alibi) return capped;
  return capped - double{alibi_slopes(c.problem.heads)[static_cast<std::size_t>(head)]} * static_cast<double>(distance);
}

inline ExactRow attend_exactly(const AttentionCase& c, std::int64_t row, std::int64_t head,
                               const std::vector<TokenId>& seen) {
  const std::int64_t kv_head = head / c.problem.group();
  const std::vector<float> query = c.queries.row(row, head);
  std::vector<double> scores;
  double top = -std::numeric_limits<double>::infinity();
  for (const TokenId token : seen) {
    scores.push_back(exact_logit(c, dot(query, c.keys.row(token.value(), kv_head)), head, row - token.value()));
    top = std::max(top, scores.back());
  }
  ExactRow result{std::vector<double>(query.size(), 0.0)};
  double sum = 0.0;
  for (std::size_t j = 0; j < seen.size(); ++j) {
    const double weight = std::exp(scores[j] - top);
    const std::vector<float> value = c.values.row(seen[j].value(), kv_head);
    for (std::size_t k = 0; k < value.size(); ++k) result.out[k] += weight * double{value[k]};
    sum += weight;
  }
  if (seen.empty()) return result;
  for (double& component : result.out) component /= sum;
  result.lse = top + std::log(sum);
  return result;
}

// The keys that a query attends to exactly: sinks and window, each once.
inline std::vector<TokenId> window_keys(const partition::SequenceGrid& grid, TokenId query) {
  std::vector<TokenId> seen;
  for (const Range<TokenId> part : {grid.sinks_of(query), grid.window_of(query)}) {
    for (TokenId token = part.begin; token < part.end; ++token) {
      if (grid.is_key(token)) seen.push_back(token);
    }
  }
  return seen;
}

template <class T>
const T& pick(std::mt19937_64& random, const std::vector<T>& options) {
  return options[std::uniform_int_distribution<std::size_t>(0, options.size() - 1)(random)];
}

// Every shape that has broken an attention kernel somewhere, in random combination.
inline AttentionProblem random_problem(std::mt19937_64& random) {
  AttentionProblem problem;
  problem.chunk_size = pick<std::int64_t>(random, {1, 16, 48, 64, 100});
  problem.tokens = pick<std::int64_t>(random, {1, 2, 5, 17, 64, 127, 128, 192, 257, 331, 640, 700});
  problem.kv_heads = pick<std::int64_t>(random, {1, 2, 3});
  problem.heads = problem.kv_heads * pick<std::int64_t>(random, {1, 2, 4, 8});
  problem.head_dim = pick<std::int64_t>(random, {1, 8, 32, 64, 65, 80, 96, 128, 192, 256});
  problem.dtype = pick<DType>(random, {DType::kFloat32, DType::kBfloat16, DType::kFloat16});
  problem.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
  problem.landmark_slots = problem.chunk_size > 1 && pick<int>(random, {0, 1}) == 1;
  if (pick<int>(random, {0, 1, 2}) == 0) {
    const std::int64_t cut = std::uniform_int_distribution<std::int64_t>(0, problem.tokens)(random);
    problem.cu_seqlens = {0, cut, cut, problem.tokens};
  }
  return problem;
}

inline AttentionPolicy random_policy(std::mt19937_64& random, const AttentionProblem& problem) {
  AttentionPolicy policy;
  policy.window = pick<std::int64_t>(random, {0, 1, problem.chunk_size, 100, problem.tokens + 1});
  policy.sinks = pick<std::int64_t>(random, {0, 0, 1, 4, problem.chunk_size + 2});
  policy.topk = pick<std::int64_t>(random, {0, 1, 8, problem.tokens / problem.chunk_size + 3});
  return policy;
}

}  // namespace ringmark::kernels
