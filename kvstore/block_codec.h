// How a closed block is kept: as it came, in another float type, or quantised. The kernels read blocks in the layer's
// own precision only: a kept block is decoded into a buffer (usually of the block cache) before they see it.
//
//     kAsInput           the bytes of the block
//     kBfloat16, kFloat16
//     kFp8               e4m3, K and V each with one fp32 scale a channel (K) or token (V)
//     kInt8, kInt4       symmetric, the same scales; int4 packs two values a byte
//
// Scales: K by channel, because a few channels of keys are large in all tokens; V by token. A scale is the largest
// magnitude over the largest code, so that nothing is cut off; it is 0 where all values are 0.
//
// Encoded, quantised: [K scales: head_dim fp32][V scales: chunk_size fp32][K codes][V codes], rows of codes in the
// order of the block, each a whole number of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/block_table.h"

namespace ringmark::kvstore {

enum class BlockFormat { kAsInput, kBfloat16, kFloat16, kFp8, kInt8, kInt4 };

std::string_view name_of(BlockFormat format);  // as-input, bf16, fp16, fp8, int8, int4

struct TensorError {
  double largest = 0.0;   // absolute
  double relative = 0.0;  // largest over the root mean square of the exact values; 0 where these are all 0
};

struct BlockError {
  TensorError keys;
  TensorError values;
};

class BlockCodec {
 public:
  BlockCodec(BlockFormat format, const kernels::BlockShape& shape);

  BlockFormat format() const { return format_; }
  std::int64_t encoded_bytes() const;  // of one block; the same for every block, a multiple of 64

  // block: [K|V][chunk_size][head_dim]; every slot counts. Throws Error(kBadInput) naming the K channel or V token for
  // what the format cannot hold: NaN and infinity when it is quantised, in the 16-bit formats a finite value that would
  // come back infinite (there NaN and infinity are kept).
  void encode(std::span<const std::byte> block, std::span<std::byte> encoded) const;
  // Throws Error(kBadInput) for scales and codes that encode() never writes: a scale that is negative, no finite number
  // or so large that values overflow, a code out of range, a code other than 0 under the scale 0.
  void decode(std::span<const std::byte> encoded, std::span<std::byte> block) const;
  // What the kernels would read instead of `block`, against it.
  BlockError error_of(std::span<const std::byte> block) const;

 private:
  BlockFormat format_;
  kernels::BlockShape shape_;
};

}  // namespace ringmark::kvstore
