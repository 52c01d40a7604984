// An output to which several branches of attention add, each with a gate for every (row, head).
#pragma once

#include <cstdint>

#include "core/ids.h"
#include "core/tensor.h"

namespace ringmark::kernels {

struct GatedRows {
  TensorView<float, 3> out;          // [rows, H, d], contiguous components
  TensorView<const float, 2> gates;  // [rows, H] of the branch

  // out += gate * branch, d floats
  void add(std::int64_t row, std::int64_t head, const float* branch) const {
    const float gate = gates(row, head);
    float* sum = out.at(row, head);
    for (std::int64_t k = 0; k < out.dim(2); ++k) sum[k] += gate * branch[k];
  }
  // For the branch that `out` holds already: out *= gate.
  void weigh(RowRange rows) const {
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      for (std::int64_t head = 0; head < out.dim(1); ++head) {
        const float gate = gates(row, head);
        float* branch = out.at(row, head);
        for (std::int64_t k = 0; k < out.dim(2); ++k) branch[k] *= gate;
      }
    }
  }
};

}  // namespace ringmark::kernels
