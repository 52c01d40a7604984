#include "kvstore/landmark_table.h"

#include "core/error.h"

namespace ringmark::kvstore {

LandmarkTable::LandmarkTable(const kernels::LandmarkShape& shape, const partition::SequenceGrid& grid,
                             const partition::Layout& layout, RankId rank, comm::Bytes arena)
    : shape_(shape),
      grid_(grid),
      layout_(layout),
      rank_(rank),
      own_(reinterpret_cast<float*>(arena.data()), arena.size() / sizeof(float)),
      remote_(static_cast<std::size_t>(layout.ranks())) {
  require(static_cast<std::int64_t>(arena.size()) ==
              bytes_of(shape, static_cast<std::int64_t>(layout.chunks_of(rank).size())),
          "the arena of a landmark table has exactly its size");
}

void LandmarkTable::gather(comm::Communicator& communicator) {
  std::vector<comm::Bytes> all;
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    if (RankId(rank) == rank_) {
      all.push_back(std::as_writable_bytes(own_));
      continue;
    }
    auto& records = remote_[static_cast<std::size_t>(rank)];
    const auto chunks = static_cast<std::int64_t>(layout_.chunks_of(RankId(rank)).size());
    records.resize(static_cast<std::size_t>(chunks * shape_.record_floats()));
    all.push_back(std::as_writable_bytes(std::span(records)));
  }
  communicator.all_gather("gather landmarks", std::as_bytes(own_), all);
}

const float* LandmarkTable::record_of(ChunkId chunk) const {
  const RankId owner = layout_.owner(chunk);
  const auto offset = static_cast<std::size_t>(layout_.slot(chunk) * shape_.record_floats());
  if (owner == rank_) return own_.data() + offset;
  const auto& records = remote_[static_cast<std::size_t>(owner.value())];
  return records.empty() ? nullptr : records.data() + offset;
}

kernels::PackedLandmarks LandmarkTable::pack(const ChangeRecord& change) const {
  std::vector<ChunkId> chunks;
  std::vector<float> records;
  for (ChunkId chunk(0); chunk < ChunkId(grid_.chunk_count()); ++chunk) {
    const float* record = record_of(chunk);
    if (record == nullptr || !grid_.has_landmark(chunk)) continue;
    chunks.push_back(chunk);
    records.insert(records.end(), record, record + shape_.record_floats());
    if (change) change(chunk, std::span(records).last(static_cast<std::size_t>(shape_.record_floats())));
  }
  return {shape_, std::move(chunks), records};
}

kernels::LandmarkRecords LandmarkTable::records() const {
  kernels::LandmarkRecords known{shape_, {}};
  for (ChunkId chunk(0); chunk < ChunkId(grid_.chunk_count()); ++chunk) known.records.push_back(record_of(chunk));
  return known;
}

}  // namespace ringmark::kvstore
