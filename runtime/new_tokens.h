// Tokens that a decode step adds to kept sequences: the same rows on every rank, those of one sequence in the order of
// time.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace ringmark::runtime {

struct NewTokens {
  std::span<const std::int64_t> sequences;  // [rows] which sequence each row continues
  RowsView queries;                         // [rows, H, d]
  RowsView retrieval_queries;               // [rows, H, d]; the same view where the model has no calibration
  RowsView keys;                            // [rows, Hkv, d]
  RowsView values;                          // [rows, Hkv, d]

  std::int64_t rows() const { return static_cast<std::int64_t>(sequences.size()); }
  NewTokens slice(std::int64_t begin, std::int64_t end) const {
    return {sequences.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
            queries.slice(begin, end), retrieval_queries.slice(begin, end), keys.slice(begin, end),
            values.slice(begin, end)};
  }
};

}  // namespace ringmark::runtime
