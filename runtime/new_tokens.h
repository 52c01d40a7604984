// Tokens that a decode step adds to kept sequences: the same rows on every rank, those of one sequence in the order of
// time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/tensor.h"

namespace ringmark::runtime {

struct NewTokens {
  std::span<const std::int64_t> sequences;       // [rows] which sequence each row continues
  RowsView queries;                              // [rows, H, d]
  RowsView retrieval_queries;                    // [rows, H, d]; the same view where the model has no calibration
  RowsView keys;                                 // [rows, Hkv, d]
  RowsView values;                               // [rows, Hkv, d]
  std::span<const std::int64_t> token_ids = {};  // [rows]; empty: not known

  std::int64_t rows() const { return static_cast<std::int64_t>(sequences.size()); }
  std::optional<std::int64_t> token_id(std::int64_t row) const {
    return token_ids.empty() ? std::nullopt : std::optional(token_ids[static_cast<std::size_t>(row)]);
  }
  NewTokens slice(std::int64_t begin, std::int64_t end) const {
    const auto first = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin);
    return {sequences.subspan(first, count),
            queries.slice(begin, end),
            retrieval_queries.slice(begin, end),
            keys.slice(begin, end),
            values.slice(begin, end),
            token_ids.empty() ? token_ids : token_ids.subspan(first, count)};
  }
};

}  // namespace ringmark::runtime
