#include "runtime/cuda/landmark_records.h"

namespace ringmark::runtime::cuda {
namespace {

// Adds a read, or lengthens the last one when both ends continue it.
void append(std::vector<comm::RemoteRead>& reads, const comm::RemoteRead& read) {
  if (!reads.empty()) {
    comm::RemoteRead& last = reads.back();
    const auto length = static_cast<std::int64_t>(last.destination.size());
    if (last.peer == read.peer && last.offset + length == read.offset &&
        last.destination.data() + length == read.destination.data()) {
      last.destination = {last.destination.data(), last.destination.size() + read.destination.size()};
      return;
    }
  }
  reads.push_back(read);
}

}  // namespace

LandmarkRecords::LandmarkRecords(comm::cuda::DeviceTransport& transport, int region,
                                 const partition::SequenceGrid& grid, const partition::Layout& layout, RankId rank,
                                 const kernels::LandmarkShape& shape, comm::Bytes own, Workspace& workspace)
    : transport_(transport),
      region_(region),
      grid_(grid),
      layout_(layout),
      rank_(rank),
      shape_(shape),
      own_(own),
      workspace_(workspace) {}

std::vector<ChunkId> LandmarkRecords::all_remote() const {
  std::vector<ChunkId> remote;
  for (int turn = 1; turn < layout_.ranks(); ++turn) {
    const auto& chunks = layout_.chunks_of(RankId((rank_.value() + turn) % layout_.ranks()));
    remote.insert(remote.end(), chunks.begin(), chunks.end());
  }
  return remote;
}

std::int64_t LandmarkRecords::read(const std::vector<ChunkId>& chunks) {
  const std::int64_t floats = shape_.record_floats();
  const std::int64_t bytes = floats * static_cast<std::int64_t>(sizeof(float));
  std::vector<const float*> table(static_cast<std::size_t>(grid_.chunk_count()), nullptr);
  const auto enter = [&](ChunkId chunk, const float* record) {
    if (grid_.has_landmark(chunk)) table[static_cast<std::size_t>(chunk.value())] = record;
  };
  const auto* own = reinterpret_cast<const float*>(own_.data());
  for (const ChunkId chunk : layout_.chunks_of(rank_)) enter(chunk, own + layout_.slot(chunk) * floats);

  float* place = Workspace::reserve(workspace_.remote_records, static_cast<std::int64_t>(chunks.size()) * floats);
  std::vector<comm::RemoteRead> reads;
  for (const ChunkId chunk : chunks) {
    enter(chunk, place);
    append(reads, {static_cast<int>(layout_.owner(chunk).value()),
                   region_,
                   layout_.slot(chunk) * bytes,
                   {reinterpret_cast<std::byte*>(place), static_cast<std::size_t>(bytes)}});
    place += floats;
  }
  if (layout_.ranks() > 1) transport_.get(reads)->wait();
  workspace_.record_table.upload(table.data(), static_cast<std::int64_t>(table.size()), workspace_.stream);
  workspace_.stream.wait();  // `table` goes away
  return static_cast<std::int64_t>(chunks.size()) * bytes;
}

}  // namespace ringmark::runtime::cuda
