// The loop over the chunks of a tile for one half: scores, weights, output. While the weights of a chunk are made on
// the plain cores, the tensor cores work on the scores of the next chunk and the output of the one before.
#pragma once

#include <cstdint>

#include "kernels/cuda/hopper/attend_products.cuh"
#include "kernels/cuda/hopper/block_ring.cuh"

namespace ringmark::kernels::cuda::hopper {

// Weights, in the order of the calls for a chunk:
//     bool make(scores, item, half)   scores become exponentials; whether something is to be corrected
//     void correct(out)               if so; `out` holds all chunks before
//     void finish(scores)             exponentials become weights
template <class Element, int kHeadDim, class Reader, class Weights>
class ChunkPipeline {
 public:
  __device__ ChunkPipeline(Reader& reader, Weights& weights, const std::uint32_t (&queries)[kHeadDim / 16][4],
                           float (&out)[kHeadDim / 2])
      : reader_(reader), weights_(weights), queries_(queries), out_(out) {}

  // Adds all chunks of the tile to the output.
  __device__ void run() {
    current_ = reader_.next();
    if (current_ < 0) return;
    float even[32], odd[32];
    fence_accumulators(out_);
    wgmma_fence();
    ask_for_scores(even, current_);
    wgmma_commit();  // in place of the output of a previous chunk
    while (true) {
      if (!step(even, odd)) break;
      if (!step(odd, even)) {
#pragma unroll
        for (int i = 0; i < 32; ++i) even[i] = odd[i];
        break;
      }
    }
    finish(even);
  }

 private:
  __device__ void ask_for_scores(float (&scores)[32], int stage) {
    multiply_keys<Element, kHeadDim>(scores, queries_, reader_.keys(stage));
    wgmma_commit();
  }

  // The current chunk's scores, asked for before, become output; the next chunk's are asked for. False, with nothing
  // done but the wait for these scores, when the tile has no next chunk.
  __device__ bool step(float (&scores)[32], float (&next_scores)[32]) {
    const int next = reader_.next();
    if (next < 0) {
      wgmma_wait<1>();
      fence_accumulators(scores);
      return false;
    }
    wgmma_fence();
    ask_for_scores(next_scores, next);
    wgmma_wait<2>();
    fence_accumulators(scores);
    add_chunk<1>(scores);
    previous_ = current_;
    current_ = next;
    return true;
  }

  __device__ void finish(float (&scores)[32]) {
    add_chunk<0>(scores);
    wgmma_wait<0>();
    fence_accumulators(out_);
    reader_.release(current_);
  }

  // kPending: products asked for after those of the previous chunk's output.
  template <int kPending>
  __device__ void add_chunk(float (&scores)[32]) {
    // The wait stands twice, behind a branch that depends on all exponentials: the assembler would move them behind a
    // single one, and nothing would run beside the products.
    if (weights_.make(scores, reader_.item(current_), reader_.half())) {
      wgmma_wait<kPending>();
      fence_accumulators(out_);
      weights_.correct(out_);
    } else {
      wgmma_wait<kPending>();
      fence_accumulators(out_);
    }
    if (previous_ >= 0) reader_.release(previous_);
    weights_.finish(scores);
    std::uint32_t operands[4][4];
    pack_weights(scores, operands);
    fence_accumulators(out_);
    wgmma_fence();
    add_values<kHeadDim>(out_, operands, reader_.values(current_));
    wgmma_commit();
  }

  Reader& reader_;
  Weights& weights_;
  const std::uint32_t (&queries_)[kHeadDim / 16][4];
  float (&out_)[kHeadDim / 2];
  int previous_ = -1;
  int current_ = -1;
};

}  // namespace ringmark::kernels::cuda::hopper
