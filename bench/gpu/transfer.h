// Whole arrays between the host and the GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cuda/buffer.h"
#include "core/cuda/stream.h"

namespace ringmark::bench {

// The host's array may go when the stream has come past the copy.
template <class T>
ringmark::cuda::Buffer<T> upload(const std::vector<T>& values, cudaStream_t stream) {
  ringmark::cuda::Buffer<T> buffer(static_cast<std::int64_t>(values.size()));
  buffer.upload(values.data(), buffer.size(), stream);
  return buffer;
}

// Waits for the stream.
template <class T>
std::vector<T> download(const ringmark::cuda::Buffer<T>& buffer, std::int64_t first, std::int64_t count,
                        cudaStream_t stream) {
  std::vector<T> values(static_cast<std::size_t>(count));
  buffer.download(values.data(), count, stream, first);
  ringmark::cuda::check(cudaStreamSynchronize(stream), "wait for the GPU");
  return values;
}

}  // namespace ringmark::bench
