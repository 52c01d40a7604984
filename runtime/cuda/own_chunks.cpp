#include "runtime/cuda/own_chunks.h"

#include <cstring>

namespace ringmark::runtime::cuda {
namespace {

constexpr std::size_t kAlignment = 16;

// Arrays of different types behind each other, each aligned.
class PackedArrays {
 public:
  // Returns where the array begins.
  template <class T>
  std::size_t append(const std::vector<T>& values) {
    const std::size_t begin = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(begin + values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(bytes_.data() + begin, values.data(), values.size() * sizeof(T));
    return begin;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

OwnChunks upload_own_chunks(const partition::SequenceGrid& grid, const partition::Layout& layout, RankId rank,
                            const std::vector<kernels::cuda::ChunkGeometry>& geometry, Workspace& workspace) {
  std::vector<std::int64_t> first_rows, landmark_rows;
  std::vector<std::int32_t> ids, slots;
  std::vector<std::uint8_t> has_landmark;
  for (const ChunkId chunk : layout.chunks_of(rank)) {
    first_rows.push_back(layout.first_row(chunk));
    landmark_rows.push_back(layout.first_row(chunk) + grid.tokens_of(chunk).size() - 1);
    ids.push_back(static_cast<std::int32_t>(chunk.value()));
    slots.push_back(geometry[static_cast<std::size_t>(chunk.value())].slots_end);
    has_landmark.push_back(grid.has_landmark(chunk) ? 1 : 0);
  }
  PackedArrays arrays;
  const std::size_t at_first_rows = arrays.append(first_rows), at_landmark_rows = arrays.append(landmark_rows),
                    at_ids = arrays.append(ids), at_slots = arrays.append(slots),
                    at_has_landmark = arrays.append(has_landmark);
  const auto bytes = static_cast<std::int64_t>(arrays.bytes().size());
  const std::byte* device = Workspace::reserve(workspace.own_chunks, bytes);
  workspace.own_chunks.upload(arrays.bytes().data(), bytes, workspace.stream);
  workspace.stream.wait();
  return {static_cast<std::int64_t>(ids.size()),
          reinterpret_cast<const std::int64_t*>(device + at_first_rows),
          reinterpret_cast<const std::int64_t*>(device + at_landmark_rows),
          reinterpret_cast<const std::int32_t*>(device + at_ids),
          reinterpret_cast<const std::int32_t*>(device + at_slots),
          reinterpret_cast<const std::uint8_t*>(device + at_has_landmark)};
}

}  // namespace ringmark::runtime::cuda
