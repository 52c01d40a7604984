// What the packing and landmark kernels want to know of the chunks that a rank owns.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/layer.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"
#include "runtime/cuda/workspace.h"

namespace ringmark::runtime::cuda {

// Arrays on the device, by slot of the layout; they live in the workspace.
struct OwnChunks {
  std::int64_t count = 0;
  const std::int64_t* first_rows = nullptr;     // row of the chunk's first token
  const std::int64_t* landmark_rows = nullptr;  // row whose retrieval query is the landmark query
  const std::int32_t* ids = nullptr;
  const std::int32_t* slots = nullptr;  // ChunkGeometry::slots_end
  const std::uint8_t* has_landmark = nullptr;
};

// Waits for the workspace's stream.
OwnChunks upload_own_chunks(const partition::SequenceGrid& grid, const partition::Layout& layout, RankId rank,
                            const std::vector<kernels::cuda::ChunkGeometry>& geometry, Workspace& workspace);

}  // namespace ringmark::runtime::cuda
