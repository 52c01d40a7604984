// The landmark records of this rank's chunks, one per chunk slot, inside an exposed arena; and, after gather(), those
// of every chunk.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "core/ids.h"
#include "kernels/attend_chunks.h"
#include "kernels/landmarks.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"

namespace ringmark::kvstore {

class LandmarkTable {
 public:
  static std::int64_t bytes_of(const kernels::LandmarkShape& shape, std::int64_t chunks) {
    return chunks * shape.record_floats() * static_cast<std::int64_t>(sizeof(float));
  }

  // `arena` holds the records of the rank's chunks (bytes_of(shape, chunks of the rank)) and outlives the table.
  LandmarkTable(const kernels::LandmarkShape& shape, const partition::SequenceGrid& grid,
                const partition::Layout& layout, RankId rank, comm::Bytes arena);

  const kernels::LandmarkShape& shape() const { return shape_; }
  std::span<float> own_records() const { return own_; }

  // Collective: the records of all ranks to all ranks.
  void gather(comm::Communicator& communicator);

  // The known landmarks (own, or all after gather) as the scorer wants them; `change` may make another record of a
  // copy.
  using ChangeRecord = std::function<void(ChunkId chunk, std::span<float> record)>;
  kernels::PackedLandmarks pack(const ChangeRecord& change = {}) const;
  // Addresses of the known records, by chunk.
  kernels::LandmarkRecords records() const;

 private:
  const float* record_of(ChunkId chunk) const;

  kernels::LandmarkShape shape_;
  const partition::SequenceGrid& grid_;
  const partition::Layout& layout_;
  RankId rank_;
  std::span<float> own_;
  std::vector<std::vector<float>> remote_;  // by rank; empty before gather and for this rank
};

}  // namespace ringmark::kvstore
