// Non-owning views with 64-bit strides. TensorView is typed; RowsView is the storage form of q, k, v:
// [rows, heads, head_dim] of any DType, last dimension contiguous.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace ringmark {

template <class T, int kRank>
class TensorView {
 public:
  using Extents = std::array<std::int64_t, static_cast<std::size_t>(kRank)>;

  constexpr TensorView() = default;
  // Row-major and contiguous.
  constexpr TensorView(T* data, Extents shape) : data_(data), shape_(shape) {
    std::int64_t stride = 1;
    for (auto dim = static_cast<std::size_t>(kRank); dim-- > 0;) {
      strides_[dim] = stride;
      stride *= shape[dim];
    }
  }
  constexpr TensorView(T* data, Extents shape, Extents strides) : data_(data), shape_(shape), strides_(strides) {}

  constexpr T* data() const { return data_; }
  constexpr std::int64_t dim(int axis) const { return shape_[static_cast<std::size_t>(axis)]; }
  constexpr std::int64_t stride(int axis) const { return strides_[static_cast<std::size_t>(axis)]; }

  // Address of an element, or of the start of a row when fewer indices than dimensions are given.
  template <class... Index>
  constexpr T* at(Index... index) const {
    static_assert(sizeof...(Index) <= static_cast<std::size_t>(kRank));
    std::int64_t offset = 0;
    std::size_t axis = 0;
    ((offset += static_cast<std::int64_t>(index) * strides_[axis++]), ...);
    return data_ + offset;
  }
  template <class... Index>
  constexpr T& operator()(Index... index) const {
    static_assert(sizeof...(Index) == static_cast<std::size_t>(kRank));
    return *at(index...);
  }

 private:
  T* data_ = nullptr;
  Extents shape_{};
  Extents strides_{};
};

// [rows, heads, head_dim] in storage precision, contiguous. `row(r, h)` is the address of head_dim elements.
struct RowsView {
  const std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;

  const std::byte* row(std::int64_t r, std::int64_t head) const {
    return data + (r * heads + head) * head_dim * size_of(dtype);
  }
  void load(std::int64_t r, std::int64_t head, float* out) const { widen(row(r, head), dtype, head_dim, out); }
  RowsView slice(std::int64_t begin, std::int64_t end) const {
    return {data + begin * heads * head_dim * size_of(dtype), dtype, end - begin, heads, head_dim};
  }
  std::int64_t bytes() const { return rows * heads * head_dim * size_of(dtype); }
  bool empty() const { return data == nullptr; }
};

}  // namespace ringmark
