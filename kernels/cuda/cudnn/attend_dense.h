// Exact causal attention of one document by cuDNN: what the benchmarks measure the sparse path against, and the dense
// path where this library is built with cuDNN.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/cuda/buffer.h"
#include "core/ids.h"
#include "kernels/cuda/layer.h"

namespace ringmark::kernels::cuda::cudnn {

// Device memory, row-major: q and out [tokens, H, d], k and v [tokens, Hkv, d] in the dtype of the layer, 16-byte
// aligned; lse [tokens, H] natural logarithm, null when the object was made without it. Every slot is a key, landmark
// slots too.
struct DenseArrays {
  const std::byte* q = nullptr;
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  std::byte* out = nullptr;
  float* lse = nullptr;
};

// The compiled plan of one shape and its workspace. An object serves one stream at a time.
class DenseAttention {
 public:
  // bf16 or fp16, head_dim a multiple of 8 up to 256. Uses dtype, heads, kv_heads, head_dim and scale.
  static bool supports(const LayerShape& shape);

  // Plans for the current device. kv_heads_at_once: kv heads a call of cuDNN covers, a divisor of kv_heads; 0 takes as
  // many as keep each of its tensors below 2^31 elements. Throws Error(kEnvironment) when cuDNN cannot run the shape.
  DenseAttention(const LayerShape& shape, std::int64_t tokens, bool with_lse, std::int64_t kv_heads_at_once = 0);
  DenseAttention(DenseAttention&&) noexcept;
  DenseAttention& operator=(DenseAttention&&) noexcept;
  ~DenseAttention();

  // All heads, or the query heads of some kv heads (both ends multiples of kv_heads_at_once); the rest of out and lse
  // stays as it is.
  void attend(const DenseArrays& arrays, cudaStream_t stream);
  void attend(const DenseArrays& arrays, Range<std::int64_t> kv_heads, cudaStream_t stream);

  std::int64_t kv_heads_at_once() const { return kv_heads_at_once_; }
  std::int64_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  struct Plan;

  LayerShape shape_;
  bool with_lse_;
  std::int64_t kv_heads_at_once_;
  std::unique_ptr<Plan> plan_;
  ringmark::cuda::Buffer<std::byte> workspace_;
};

// Of the library that was loaded, for example "9.19.0".
std::string version();

}  // namespace ringmark::kernels::cuda::cudnn
