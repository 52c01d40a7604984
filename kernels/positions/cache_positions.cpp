#include "kernels/positions/cache_positions.h"

#include <algorithm>

#include "core/error.h"

namespace ringmark::kernels {
namespace {

// A turn on top of the first one: gain and centre of the amplitudes have had their say.
PositionEncoding further(PositionEncoding encoding) {
  encoding.gain_place = GainPlace::kScale;
  encoding.center = 0;
  return encoding;
}

}  // namespace

CachePositions::CachePositions(const AttentionProblem& problem, const AttentionPolicy& policy,
                               const partition::SequenceGrid& grid, const PositionEncoding& encoding)
    : grid_(grid),
      chunk_size_(problem.chunk_size),
      topk_(policy.topk),
      head_dim_(problem.head_dim),
      of_queries_(further(encoding), Side::kQuery, problem.head_dim),
      of_keys_(further(encoding), Side::kKey, problem.head_dim) {
  require(encoding.rotates(), "positions in a cache are those of a rotary encoding");
}

ChunkId CachePositions::first_near(TokenId query) const {
  const Range<ChunkId> eligible = grid_.eligible(query);
  return std::max(eligible.begin, eligible.end - topk_);
}

std::int64_t CachePositions::chunks_nearer(TokenId query, ChunkId chunk, std::int64_t slot) const {
  const Range<ChunkId> eligible = grid_.eligible(query);
  if (eligible.size() <= topk_) return 0;
  const std::int64_t behind_prefix = slot + (is_far(query, chunk) ? 0 : 1);
  return eligible.size() - topk_ - 1 + behind_prefix - (chunk - eligible.begin);
}

void CachePositions::meet_chunk(TokenId query, ChunkId chunk, std::int64_t slot, std::span<float> heads) const {
  turn(of_queries_, -chunks_nearer(query, chunk, slot) * chunk_size_, heads);
}

void CachePositions::meet_far_landmarks(TokenId query, std::span<float> heads) const {
  turn(of_queries_, 1 - far(query).size() * chunk_size_, heads);
}

void CachePositions::turn_back_landmark(ChunkId chunk, std::span<float> keys) const {
  turn(of_keys_, grid_.document_of(chunk).tokens.begin - grid_.landmark_slot(chunk), keys);
}

void CachePositions::turn(const Rotation& rotation, std::int64_t by, std::span<float> heads) const {
  if (by == 0) return;
  RowAngles angles;
  rotation.find_angles(by, angles);
  for (std::size_t begin = 0; begin < heads.size(); begin += static_cast<std::size_t>(head_dim_)) {
    auto* const head = reinterpret_cast<std::byte*>(heads.data() + begin);
    rotation.turn_head(angles, DType::kFloat32, head, head);
  }
}

}  // namespace ringmark::kernels
