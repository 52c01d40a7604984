// Approximate scoring: products, sums and lists of 192 rows of a query head in one walk over the landmarks. Scores are
// computed in units of log2, as the exponentials want them.
//
// Arithmetic limit: 512 tensor core cycles a step of 64 chunks and warpgroup at head_dim 128, in which a warp of each
// of the three warpgroups has 512 issue slots of its scheduler. A warpgroup asks for the products of its next step
// while it works on a step.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/cuda/error.h"
#include "kernels/cuda/fp16_queries.cuh"
#include "kernels/cuda/hopper/candidate_list.cuh"
#include "kernels/cuda/hopper/score.h"
#include "kernels/cuda/hopper/score_step.cuh"
#include "kernels/cuda/hopper/score_sum.cuh"
#include "kernels/cuda/hopper/score_work.cuh"
#include "kernels/cuda/launch.h"

namespace ringmark::kernels::cuda::hopper {
namespace {

constexpr int kWarpgroups = 3;  // that multiply
constexpr int kWarps = kWarpgroups * 4;
constexpr int kRows = kWarps * 16;
constexpr int kThreads = (kWarps + 4) * 32;
// The registers of the launch, 128, are all that there is to share.
constexpr int kLoaderRegisters = 32;
constexpr int kRegisters = 160;

// Lists of a longest topk; kept are a few more than topk + 5.
template <int kMostTopk>
struct Lists;
template <>
struct Lists<16> {
  using Shape = ListShape<7, 14>;
};
template <>
struct Lists<32> {
  using Shape = ListShape<10, 13>;
};
template <>
struct Lists<64> {
  using Shape = ListShape<20, 9>;
};

template <int kHeadDim_, int kMostTopk, bool kSums_>
struct Config {
  using ListShape = typename Lists<kMostTopk>::Shape;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kSums = kSums_;
  using Ring = LandmarkRing<kHeadDim, kHeadDim == 128 ? 3 : 5>;

  struct Shared {
    Ring ring;
    alignas(128) std::byte lists[kWarps][ListShape::kBytes];
  };
  static_assert(sizeof(Shared) <= 227 * 1024);
};

template <class Config>
__device__ void load_landmarks(typename Config::Shared& shared, const ScoreCall& call, int lane) {
  typename Config::Ring::Place place;
  ScoreItem item;
  for (std::int64_t round = 0; item_of_round(call, kRows, round, item); ++round) {
    const int landmark_head = item.head / call.heads_of_landmark;
    const Span steps = steps_of_item(call, item, lane);
    float2 bias{};
    if (!steps.empty()) bias = Config::Ring::fetch_bias(call.tiles, landmark_head, steps.end - 1, lane);
    for (int step = steps.end - 1; step >= steps.first; --step) {
      const float2 next = Config::Ring::fetch_bias(call.tiles, landmark_head, step > 0 ? step - 1 : 0, lane);
      shared.ring.load(place, call.tiles, landmark_head, step, bias, lane);
      bias = next;
      place.advance();
    }
  }
}

// What a lane keeps of its two rows while it walks.
template <class Config>
struct LaneState {
  WarpLists<typename Config::ListShape> lists;
  RowSum sum0;
  RowSum sum1;
  // With sums: two terms below this one have no score above the gate. Otherwise gates of scores.
  float quiet0 = 0.0f;
  float quiet1 = 0.0f;

  __device__ LaneState(std::uint32_t lines, int lane, int wanted) : lists(lines, lane, wanted) {}

  __device__ void gates_moved() {
    quiet0 = quiet_below(lists.gate(0));
    quiet1 = quiet_below(lists.gate(1));
  }

 private:
  __device__ static float quiet_below(float gate) {
    if (gate != gate) return kInfinite;  // of a row that takes nothing
    return Config::kSums ? exp2_approximate(gate) * (1.0f - 0x1p-20f) : gate;
  }
};

// What a lane finds in a step, block by block.
template <class Config>
struct StepFinds {
  float terms0 = 0.0f;
  float terms1 = 0.0f;
  unsigned hits = 0;  // in which blocks of 8 chunks a score may be above its gate

  __device__ void add(const LaneState<Config>& state, const float* block, unsigned hit) {
    if constexpr (Config::kSums) {
      const float pair0 = exp2_approximate(block[0]) + exp2_approximate(block[1]);
      const float pair1 = exp2_approximate(block[2]) + exp2_approximate(block[3]);
      if (!(pair0 < state.quiet0) || !(pair1 < state.quiet1)) hits |= hit;
      terms0 += pair0;
      terms1 += pair1;
    } else if (block[0] > state.quiet0 || block[1] > state.quiet0 || block[2] > state.quiet1 ||
               block[3] > state.quiet1) {
      hits |= hit;
    }
  }
};

template <class Config>
__device__ void add_terms(LaneState<Config>& state, const StepFinds<Config>& finds, const float (&scores)[32]) {
  const bool safe0 = state.sum0.add(finds.terms0), safe1 = state.sum1.add(finds.terms1);
  if (__all_sync(kAllLanes, safe0 && safe1)) return;
  if (!safe0) state.sum0.template add_any<0>(scores);
  if (!safe1) state.sum1.template add_any<2>(scores);
}

template <class Config, class ListOf>
__device__ void write_results(const ScoreCall& call, const ScoreItem& item, LaneState<Config>& state,
                              const ListOf& list_of, int warp, int lane) {
  state.lists.join(list_of);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = row_of_half(item, warp, lane, half);
    float best;
    const float cut =
        state.lists.write(half, call.listed, call.lists.capacity, kLn2, row < item.end_row, best, list_of);
    float2 sum = make_float2(best * kLn2, best > kNoScore ? 1.0f : 0.0f);
    if constexpr (Config::kSums) sum = half == 0 ? state.sum0.of_quad() : state.sum1.of_quad();
    if (eligible_chunks(call, item, row).empty()) sum = make_float2(kNoScore, 0.0f);
    if (lane % 4 != 0 || row >= item.end_row) continue;
    call.lists.cut[call.pair(row, item.head)] = cut * kLn2;
    call.lists.sum[call.pair(row, item.head)] = sum;
  }
}

// A consumer warp.
template <class Config>
class RowScorer {
 public:
  __device__ RowScorer(typename Config::Shared& shared, const ScoreCall& call, int warp, int lane)
      : shared_(shared),
        call_(call),
        warp_(warp),
        lane_(lane),
        state_(shared_address(shared.lists[warp]), lane, call.listed + 1) {}

  __device__ void run() {
    for (std::int64_t round = 0; item_of_round(call_, kRows, round, item_); ++round) {
      const Span steps = steps_of_item(call_, item_, lane_), eligible0 = eligible(0), eligible1 = eligible(1);
      const Span all = chunks_of_all(eligible0, eligible1);
      std::uint32_t queries[Config::kHeadDim / 16][4];
      load_queries<Config::kHeadDim>(queries, call_, item_, warp_, lane_);
      const float factor = call_.scale * call_.tiles.exponent_scale[item_.head / call_.heads_of_landmark] * kLog2E;
      factor0_ = factor1_ = factor;
      if (call_.dtype == DType::kBfloat16) {
        factor0_ *= to_fp16<__nv_bfloat16, 0>(queries);
        factor1_ *= to_fp16<__nv_bfloat16, 1>(queries);
      }
      state_.lists.start(!eligible0.empty(), !eligible1.empty(), steps.end * kStepChunks);
      state_.gates_moved();
      state_.sum0 = state_.sum1 = RowSum();
      if (!steps.empty()) walk(queries, steps, all);
      write_results(call_, item_, state_, list_of(), warp_, lane_);
    }
  }

 private:
  using Queries = std::uint32_t[Config::kHeadDim / 16][4];

  __device__ Span eligible(int half) const {
    return eligible_chunks(call_, item_, row_of_half(item_, warp_, lane_, half));
  }
  __device__ auto list_of() const {
    return [this](int half) {
      return call_.lists.candidates +
             call_.pair(row_of_half(item_, warp_, lane_, half), item_.head) * call_.lists.capacity;
    };
  }

  // An odd number of steps at a time: the products of one are always under way while another is worked on.
  __device__ void walk(const Queries& queries, const Span& steps, const Span& all) {
    int step = steps.end - 1, last = (steps.end - steps.first) % 2 == 0 ? step : steps.first;
#pragma unroll 1
    while (true) {
      float even[32], odd[32];
      begin(queries, even);
#pragma unroll 1
      for (; step > last; step -= 2) {
        end(even);
        work_on<true>(even, odd, queries, step, all);
        end(odd);
        work_on<true>(odd, even, queries, step - 1, all);
      }
      end(even);
      work_on<false>(even, odd, queries, step, all);
      if (step == steps.first) return;
      --step;
      last = steps.first;
    }
  }

  // Waits for the landmarks of the next products and opens these. Returns their first descriptor.
  __device__ std::uint64_t open(float (&products)[32]) {
    wait_barrier(&shared_.ring.full[ahead_.stage], ahead_.parity);
    fence_accumulators(products);
    const std::uint64_t first = swizzled_descriptor(shared_.ring.terms[ahead_.stage]);
    ahead_.advance();
    return first;
  }

  __device__ void begin(const Queries& queries, float (&products)[32]) {
    const std::uint64_t first = open(products);
#pragma unroll
    for (int part = 0; part < kParts; ++part) multiply_part<Config::kHeadDim>(products, queries, first, part);
  }

  __device__ void end(float (&products)[32]) {
    wgmma_wait<0>();
    fence_accumulators(products);
    shared_.ring.release(place_);
  }

  // The next products, if any, are asked for between blocks of scores: a warp that asks for all at once has to wait
  // until the tensor cores are through with most of them.
  template <bool kNext>
  __device__ void work_on(float (&scores)[32], float (&next)[32], const Queries& queries, int step, const Span& all) {
    const float2* bias = shared_.ring.bias[place_.bias];
    place_.advance();
    const int chunk = step * kStepChunks;
    if (chunk < all.first || chunk + kStepChunks > all.end) {
      mask_products<0>(scores, factor0_, eligible(0), chunk, lane_);
      mask_products<1>(scores, factor1_, eligible(1), chunk, lane_);
    }
    std::uint64_t first = 0;
    if constexpr (kNext) first = open(next);
    StepFinds<Config> finds;
#pragma unroll
    for (int block = 0; block < kParts; ++block) {
      if constexpr (kNext) multiply_part<Config::kHeadDim>(next, queries, first, block);
      scale_block(scores + 4 * block, factor0_, factor1_, bias[4 * block + lane_ % 4]);
      finds.add(state_, scores + 4 * block, 1u << block);
    }
    if constexpr (Config::kSums) add_terms(state_, finds, scores);
    const unsigned hits = __reduce_or_sync(kAllLanes, finds.hits);
    const bool taken = hits == 0 || state_.lists.take(scores, chunk, hits);
    // The warps of a warpgroup wait for each other anyway, so that they join together when one of them must.
    if (named_any<128>(1 + warp_ / 4, !taken)) {
      wgmma_wait<0>();
      fence_accumulators(next);
      state_.lists.join_and_take(scores, chunk, taken, list_of());
      state_.gates_moved();
    }
  }

  typename Config::Shared& shared_;
  const ScoreCall& call_;
  int warp_;
  int lane_;
  LaneState<Config> state_;
  ScoreItem item_;
  float factor0_ = 0.0f;
  float factor1_ = 0.0f;
  typename Config::Ring::Place ahead_;  // the next products
  typename Config::Ring::Place place_;  // those that are worked on
};

template <class Config>
__global__ void __launch_bounds__(kThreads, 1) score_kernel(const __grid_constant__ ScoreCall call) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<typename Config::Shared*>(memory);
  // From one lane, for the compiler to know that a warp stays together.
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0),
            lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    shared.ring.init(kWarps);
    fence_barrier_init();
  }
  __syncthreads();
  if (warp >= kWarps) {
    give_registers<kLoaderRegisters>();
    if (warp == kWarps) load_landmarks<Config>(shared, call, lane);
  } else {
    take_registers<kRegisters>();
    RowScorer<Config>(shared, call, warp, lane).run();
  }
}

template <class Config>
void launch(ScoreCall call, cudaStream_t stream) {
  call.row_tiles = ceil_div(call.row_end - call.row_begin, kRows);
  int device = 0, multiprocessors = 0;
  ringmark::cuda::check(cudaGetDevice(&device), "ask for the device");
  ringmark::cuda::check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
                        "ask for the number of multiprocessors");
  const std::int64_t items = call.row_tiles * call.heads;
  const auto kernel = score_kernel<Config>;
  constexpr int kBytes = sizeof(typename Config::Shared);
  ringmark::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                        "give score_approximately its shared memory");
  kernel<<<grid_size(items < multiprocessors ? items : multiprocessors), kThreads, kBytes, stream>>>(call);
  ringmark::cuda::check_launch("score_approximately (hopper)");
}

template <int kHeadDim, bool kSums>
void launch_for_topk(int topk, const ScoreCall& call, cudaStream_t stream) {
  if (topk <= 16) return launch<Config<kHeadDim, 16, kSums>>(call, stream);
  if (topk <= 32) return launch<Config<kHeadDim, 32, kSums>>(call, stream);
  launch<Config<kHeadDim, 64, kSums>>(call, stream);
}

void launch_for_shape(const LayerShape& shape, const ScoreCall& call, cudaStream_t stream) {
  const bool sums = shape.group > 1;
  if (shape.head_dim == 64) {
    sums ? launch_for_topk<64, true>(shape.topk, call, stream) : launch_for_topk<64, false>(shape.topk, call, stream);
  } else {
    sums ? launch_for_topk<128, true>(shape.topk, call, stream) : launch_for_topk<128, false>(shape.topk, call, stream);
  }
}

}  // namespace

void score_approximately(const LayerShape& shape, const Geometry& geometry, const std::byte* queries, RowRange rows,
                         const LandmarkTiles& tiles, const ApproximateLists& lists, cudaStream_t stream) {
  if (rows.empty()) return;
  require(has_tensor_kernels(shape) && shape.topk > 0 && shape.landmark_vectors == 1,
          "approximate scoring is given a shape it has");
  require(lists.capacity >= ApproximateLists::capacity_of(shape.topk), "approximate lists have their capacity");
  ScoreCall call;
  call.geometry = geometry.rows;
  call.queries = queries;
  call.row_begin = rows.begin;
  call.row_end = rows.end;
  call.heads = shape.heads;
  call.heads_of_landmark = shape.heads / shape.landmark_heads;
  call.listed = shape.topk + 4;
  call.scale = shape.scale;
  call.dtype = shape.dtype;
  call.tiles = tiles;
  call.lists = lists;
  launch_for_shape(shape, call, stream);
}

}  // namespace ringmark::kernels::cuda::hopper
