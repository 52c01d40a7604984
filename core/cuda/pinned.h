// Host memory that the GPU copies from and to without another copy in between. Grows when more is asked for; what it
// held is lost then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/cuda/error.h"

namespace ringmark::cuda {

class PinnedBytes {
 public:
  PinnedBytes() = default;
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;
  ~PinnedBytes() { (void)cudaFreeHost(data_); }

  std::byte* reserve(std::int64_t bytes) {
    if (bytes <= bytes_) return data_;
    check(cudaFreeHost(std::exchange(data_, nullptr)), "free pinned memory");
    bytes_ = 0;
    void* memory = nullptr;
    check(cudaMallocHost(&memory, static_cast<std::size_t>(bytes)), "reserve pinned memory");
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
    return data_;
  }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace ringmark::cuda
