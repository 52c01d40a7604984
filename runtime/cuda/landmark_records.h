// The landmark records that this rank's GPU can read: its own, and those that were read from peers.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/cuda/device_transport.h"
#include "kernels/landmarks.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"
#include "runtime/cuda/workspace.h"

namespace ringmark::runtime::cuda {

class LandmarkRecords {
 public:
  // `own`: records of this rank's chunks, region `region` of the transport. All arguments outlive the object.
  LandmarkRecords(comm::cuda::DeviceTransport& transport, int region, const partition::SequenceGrid& grid,
                  const partition::Layout& layout, RankId rank, const kernels::LandmarkShape& shape, comm::Bytes own,
                  Workspace& workspace);

  // Collective where the transport's reads are. Reads the records of remote `chunks` (by owner, in the order of its
  // slots) and lists them and the own ones in workspace.record_table. Returns the bytes read.
  std::int64_t read(const std::vector<ChunkId>& chunks);

  // Those of every other rank, the next rank's first.
  std::vector<ChunkId> all_remote() const;

 private:
  comm::cuda::DeviceTransport& transport_;
  int region_;
  const partition::SequenceGrid& grid_;
  const partition::Layout& layout_;
  RankId rank_;
  kernels::LandmarkShape shape_;
  comm::Bytes own_;
  Workspace& workspace_;
};

}  // namespace ringmark::runtime::cuda
