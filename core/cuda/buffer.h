// Memory of the current device, from plain cudaMalloc: 256-byte aligned, not initialised, freed with the object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/cuda/error.h"

namespace ringmark::cuda {

template <class T>
class Buffer {
 public:
  Buffer() = default;
  // Throws Error(kEnvironment) with the bytes asked for and those free when they cannot be had.
  explicit Buffer(std::int64_t count) : count_(count) {
    if (count == 0) return;
    void* memory = nullptr;
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
      (void)cudaGetLastError();  // the failure is reported here, not at the next launch
      std::size_t free_bytes = 0, total = 0;
      (void)cudaMemGetInfo(&free_bytes, &total);
      fail_environment("the GPU has no " + std::to_string(bytes) + " bytes: " + std::to_string(free_bytes) + " of " +
                       std::to_string(total) + " are free");
    }
    data_ = static_cast<T*>(memory);
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) (void)cudaFree(data_);
  }

  T* data() const { return data_; }
  std::int64_t size() const { return count_; }
  std::int64_t bytes() const { return count_ * static_cast<std::int64_t>(sizeof(T)); }
  bool empty() const { return count_ == 0; }

  void upload(const T* host, std::int64_t count, cudaStream_t stream, std::int64_t first = 0) {
    copy(data_ + first, host, count, cudaMemcpyHostToDevice, stream);
  }
  void download(T* host, std::int64_t count, cudaStream_t stream, std::int64_t first = 0) const {
    copy(host, data_ + first, count, cudaMemcpyDeviceToHost, stream);
  }
  void fill_bytes(int value, cudaStream_t stream) {
    if (count_ > 0) check(cudaMemsetAsync(data_, value, static_cast<std::size_t>(bytes()), stream), "fill GPU memory");
  }

 private:
  static void copy(T* to, const T* from, std::int64_t count, cudaMemcpyKind kind, cudaStream_t stream) {
    if (count == 0) return;
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(T), kind, stream),
          "copy to or from the GPU");
  }

  T* data_ = nullptr;
  std::int64_t count_ = 0;
};

}  // namespace ringmark::cuda
