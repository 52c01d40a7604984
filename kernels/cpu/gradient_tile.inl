// Softmax gradients of one chunk, columns of queries. Included after a simd header.
#pragma once

#include "kernels/cpu/exponential.inl"
#include "kernels/cpu/gradient_tile.h"
#include "kernels/cpu/panel_product.h"

namespace {

void multiply_add(const float* const* rows, std::int64_t count, std::int64_t depth, const float* panel, float* c,
                  std::int64_t c_stride) {
  multiply_panel<Accumulate::kFromC>(rows, count, depth, panel, c, c_stride);
}

void differentiate_window(std::int64_t keys, const float* visible, const float* lse, const float* delta, float* scores,
                          float* products) {
  for (int column = 0; column < kPanelColumns; column += Simd::kLanes) {
    const Simd::V end = Simd::load(visible + column);
    const Simd::V top = Simd::load(lse + column);
    const Simd::V mean = Simd::load(delta + column);
    for (std::int64_t j = 0; j < keys; ++j) {
      float* const score = scores + j * kPanelColumns + column;
      float* const product = products + j * kPanelColumns + column;
      const Simd::Mask seen = Simd::less(Simd::set(static_cast<float>(j)), end);
      const Simd::V weight = Simd::select(seen, exponential(Simd::load(score), top), Simd::zero());
      const Simd::V gradient = Simd::mul(weight, Simd::sub(Simd::load(product), mean));
      Simd::store(score, weight);
      Simd::store(product, Simd::select(seen, gradient, Simd::zero()));
    }
  }
}

// Scores become e^(score - top); sums of these and of their products with `products`, down the columns.
void exponentiate_columns(std::int64_t keys, float* scores, const float* products, float* sums, float* along) {
  for (int column = 0; column < kPanelColumns; column += Simd::kLanes) {
    const Simd::V empty = Simd::set(-kInfinity);
    Simd::V high = empty;
    for (std::int64_t j = 0; j < keys; ++j) high = Simd::max(high, Simd::load(scores + j * kPanelColumns + column));
    const Simd::V base = Simd::select(Simd::less(empty, high), high, Simd::zero());
    Simd::V sum = Simd::zero();
    Simd::V product = Simd::zero();
    for (std::int64_t j = 0; j < keys; ++j) {
      float* const score = scores + j * kPanelColumns + column;
      const Simd::V weight = exponential(Simd::load(score), base);
      Simd::store(score, weight);
      sum = Simd::add(sum, weight);
      product = Simd::fmadd(weight, Simd::load(products + j * kPanelColumns + column), product);
    }
    Simd::store(sums + column, sum);
    Simd::store(along + column, product);
  }
}

void differentiate_chosen(std::int64_t keys, const float* weight, float* scores, float* products, float* delta) {
  alignas(64) float factor[kPanelColumns];
  alignas(64) float along[kPanelColumns];
  exponentiate_columns(keys, scores, products, factor, along);
  for (int column = 0; column < kPanelColumns; ++column) {
    const float sum = factor[column];
    delta[column] = sum == 0.0f ? 0.0f : along[column] / sum;
    factor[column] = sum == 0.0f ? 0.0f : weight[column] / sum;
  }
  for (int column = 0; column < kPanelColumns; column += Simd::kLanes) {
    const Simd::V share = Simd::load(factor + column);
    const Simd::V mean = Simd::load(delta + column);
    for (std::int64_t j = 0; j < keys; ++j) {
      float* const score = scores + j * kPanelColumns + column;
      float* const product = products + j * kPanelColumns + column;
      const Simd::V p = Simd::mul(Simd::load(score), share);
      Simd::store(score, p);
      Simd::store(product, Simd::mul(p, Simd::sub(Simd::load(product), mean)));
    }
  }
}

void transpose(std::int64_t keys, float scale, const float* matrix, float* rows, std::int64_t row_stride) {
  for (std::int64_t j = 0; j < keys; ++j) {
    for (int column = 0; column < kPanelColumns; ++column) {
      rows[column * row_stride + j] = scale * matrix[j * kPanelColumns + column];
    }
  }
}

}  // namespace
