// The block store on the device.
#pragma once

#include "kernels/cuda/layer.h"

namespace ringmark::kernels::cuda {

// Copies K and V rows of this rank ([rows, Hkv, d] each) into blocks: slot n of `arena` takes chunk `chunks[n]`, whose
// first token is row `first_rows[n]` and whose keys are its first `slots[n]` slots (ChunkGeometry::slots_end; device
// arrays of `count`). Layout of the arena: [count][kv_heads][K|V], elements in `order`. The other slots become zero, a
// landmark slot too: it may hold anything, and a product with 0 must stay 0.
//
// In swizzled order V becomes fp16 whatever the dtype: softmax weights keep eight times as much in fp16 as in bf16, and
// bf16 values fit, except those beyond 65504. Where one is, *beyond_fp16 (on the device, set by the caller to 0)
// becomes 1, and the layer is one for BlockOrder::kPlain. Values below 2^-14 lose what is below 2^-25.
void pack_blocks(const LayerShape& shape, const std::byte* keys, const std::byte* values,
                 const std::int64_t* first_rows, const std::int32_t* slots, std::int64_t count, BlockOrder order,
                 std::byte* arena, std::int32_t* beyond_fp16, cudaStream_t stream);

// Writes K and V of single rows ([count, Hkv, d] each) to their slots in blocks of plain order: row n to slot
// rows[n].visible - 1 of chunk rows[n].chunk. blocks: [chunk_count, Hkv] addresses on the device. A landmark slot is
// written too; nobody reads it as a key.
void append_rows(const LayerShape& shape, const RowGeometry* rows, std::int64_t count, const std::byte* keys,
                 const std::byte* values, std::byte* const* blocks, cudaStream_t stream);

}  // namespace ringmark::kernels::cuda
