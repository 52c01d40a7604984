// The two steps of kernels/cuda/few/attend.h.
#pragma once

#include "kernels/cuda/few/attend.h"

namespace ringmark::kernels::cuda::few {

// What the rows read: with a selection the chunks that they chose, weighed by their scores, otherwise the window.
struct PartSource {
  const std::int32_t* selection = nullptr;  // [rows, Hkv, topk]
  const float* chosen_scores = nullptr;     // [rows, H, topk] after weigh_chunks
};

// The first `parts` parts of the rows; index 0 of the room is the first row.
void attend_parts(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                  const std::byte* queries, RowRange rows, const PartSource& source, std::int32_t parts,
                  const PartRoom& room, cudaStream_t stream);

// Of the window: one softmax over all parts.
void merge_parts(const LayerShape& shape, RowRange rows, std::int32_t parts, const PartRoom& room, float* out,
                 float* lse, cudaStream_t stream);

// Of the chosen chunks: out = window_weight * out + the parts, which are weighed already.
void add_parts(const LayerShape& shape, RowRange rows, std::int32_t parts, const PartRoom& room,
               const float* window_weight, float* out, cudaStream_t stream);

}  // namespace ringmark::kernels::cuda::few
