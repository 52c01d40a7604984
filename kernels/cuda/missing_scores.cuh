// Scores of picks that the list of a head did not hold, because other heads of the group picked them. Neighbouring rows
// pick much the same chunks: a landmark is read once for eight rows.
#pragma once

#include "kernels/cuda/settling.cuh"

namespace ringmark::kernels::cuda {

// The missing scores of one head in up to eight rows of a warp.
template <int kGroup>
struct MissingScores {
  static constexpr int kRows = Span<kGroup>::kRows < 8 ? Span<kGroup>::kRows : 8;

  const Settling& s;
  const Scratch& scratch;
  unsigned lacking;  // of the lanes, those whose head lacks scores that are wanted
  int first_row;     // of the warp's
  int head;          // of the group

  __device__ bool any() const {
    unsigned lanes = 0;
#pragma unroll
    for (int row = 0; row < kRows; ++row) lanes |= 1u << (row * kGroup);
    return (lacking >> (first_row * kGroup + head) & lanes) != 0;
  }
  // Null when it is not missing. row: of the warp's.
  __device__ float* place(int row, int number) const {
    const int lane = row * kGroup + head;
    float* score = scratch.scores + lane * s.score_stride() + number;
    const bool missing = (lacking >> lane & 1u) != 0 && __float_as_uint(*score) == kMissing;
    return missing && scratch.picks[row * s.pick_stride() + number] != kNoChunk ? score : nullptr;
  }
  __device__ float* place_of_chunk(int row, std::int32_t chunk) const {
    const int number = scratch.picked(s, row).find(chunk);
    return number < 0 ? nullptr : place(row, number);
  }

  // The chunks, each once, where the lists were; returns how many there are.
  __device__ int collect(std::int32_t* chunks, int lane) const {
    const int entries = kRows * s.shape.topk;
    int count = 0;
    for (int first = 0; first < entries; first += 32) {
      const int entry = first + lane, row = first_row + s.list_of_score(entry);
      const int number = entry - (row - first_row) * s.shape.topk;
      bool is_new = entry < entries && place(row, number) != nullptr;
      const std::int32_t chunk = is_new ? scratch.picks[row * s.pick_stride() + number] : kNoChunk;
      for (int other = first_row; is_new && other < row; ++other) is_new = place_of_chunk(other, chunk) == nullptr;
      const unsigned fresh = __ballot_sync(kAllLanes, is_new);
      if (is_new) chunks[count + __popc(fresh & ((1u << lane) - 1u))] = chunk;
      count += __popc(fresh);
    }
    __syncwarp();
    return count;
  }
};

// lacking  of the lanes, those whose head lacks scores that are wanted
// square   of the norm of the lane's query
template <DType kDType, int kHalves, int kGroup>
__device__ void score_missing(const Settling& s, const Span<kGroup>& span, const Scratch& scratch, unsigned lacking,
                              float square, int lane) {
  using Missing = MissingScores<kGroup>;
  auto* chunks = reinterpret_cast<std::int32_t*>(scratch.lists);  // which nobody needs any more
  for (int part = 0; lacking != 0 && part < Span<kGroup>::kRows / Missing::kRows * kGroup; ++part) {
    const Missing missing{s, scratch, lacking, part / kGroup * Missing::kRows, part % kGroup};
    if (!missing.any()) continue;
    const int count = missing.collect(chunks, lane);
    const int query_row = min(missing.first_row + min(lane / 4, Missing::kRows - 1), span.rows - 1);
    const int query_lane = query_row * kGroup + missing.head;
    const int landmark_head = span.head(missing.head) >> s.landmark_shift;
    const QueryColumns<kDType, kHalves> queries(s.queries + span.of_rank(s, query_lane) * (kHalves * 128),
                                                sqrtf(__shfl_sync(kAllLanes, square, query_lane)),
                                                s.shape.scale * s.tiles.exponent_scale[landmark_head], lane);
    for (int first = 0; first < count; first += 16) {
      const int upper = first + lane / 4, lower = upper + 8;
      const std::int32_t chunk[2] = {chunks[min(upper, count - 1)], chunks[min(lower, count - 1)]};
      float scores[4];
      scores_of_terms(TermRow::of<kHalves>(s.tiles, landmark_head, chunk[0]),
                      TermRow::of<kHalves>(s.tiles, landmark_head, chunk[1]), queries, scores, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = lane % 4 * 2 + i % 2;
        if (column >= Missing::kRows || (i < 2 ? upper : lower) >= count) continue;
        float* to = missing.place_of_chunk(missing.first_row + column, chunk[i / 2]);
        if (to != nullptr) *to = scores[i];
      }
    }
    __syncwarp();  // the chunks have been read
  }
}

}  // namespace ringmark::kernels::cuda
