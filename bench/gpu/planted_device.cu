#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "bench/gpu/planted_device.h"
#include "bench/gpu/transfer.h"
#include "core/cuda/buffer.h"
#include "core/error.h"
#include "partition/sequence_grid.h"

namespace ringmark::bench {
namespace {

using ringmark::cuda::Buffer;

enum Stream : std::uint64_t { kTurn = 1, kTopic, kQuery, kKey, kValue, kQuestion, kCode, kPlace };

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ull;
// Logit of a question and its needle: far above ln(keys) of any sequence.
constexpr float kNeedleLogit = 32.0f;
constexpr int kElements = 8;  // a thread makes at a time
constexpr int kWarpsPerBlock = 8;

// splitmix64's output function.
__host__ __device__ inline std::uint64_t mix(std::uint64_t state) {
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
  return state ^ (state >> 31);
}

// Start of the sequence of (seed, stream, index), whose n-th draw is draw(start, n).
__host__ __device__ inline std::uint64_t sequence(std::uint64_t seed, Stream stream, std::int64_t index) {
  return mix(mix(seed * kGolden + stream) + static_cast<std::uint64_t>(index) * kGolden);
}
__host__ __device__ inline std::uint64_t draw(std::uint64_t start, std::int64_t n) {
  return mix(start + static_cast<std::uint64_t>(n + 1) * kGolden);
}

// When a query turns, and to what.
struct Turns {
  std::uint64_t seed;
  std::uint64_t stay;    // of 2^53: a query equals its neighbour's
  std::uint64_t topics;  // 0: always a fresh direction
};

// The direction of a token is that of the last turn up to it. The warp looks back 32 tokens a step.
__device__ std::int64_t direction_of(const Turns& turns, std::int64_t token) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (turns.stay >> 53 != 0) token = 0;  // no query turns
  for (;; token -= 32) {
    const std::int64_t candidate = token - lane;
    const bool turned = candidate <= 0 || draw(sequence(turns.seed, kTurn, candidate), 0) >> 11 >= turns.stay;
    const unsigned votes = __ballot_sync(~0u, turned);
    if (votes == 0) continue;
    const std::int64_t turn = token - (__ffs(static_cast<int>(votes)) - 1);
    if (turns.topics == 0) return turn;
    return static_cast<std::int64_t>(draw(sequence(turns.seed, kTopic, turn), 0) % turns.topics);
  }
}

// Box-Muller, two values a draw.
__device__ void gaussians(std::uint64_t start, std::int64_t group, float (&out)[kElements]) {
#pragma unroll
  for (int pair = 0; pair < kElements / 2; ++pair) {
    const std::uint64_t bits = draw(start, group * (kElements / 2) + pair);
    const float uniform = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
    // The fast logarithm of a number next to 1 may come out above 0.
    const float radius = __fsqrt_rn(fmaxf(0.0f, -2.0f * __logf(uniform)));
    const int turn = static_cast<int>(bits & 0xFFFFFFu) - (1 << 23);
    float sine, cosine;
    __sincosf(static_cast<float>(turn) * (std::numbers::pi_v<float> * 0x1p-23f), &sine, &cosine);
    out[2 * pair] = radius * cosine;
    out[2 * pair + 1] = radius * sine;
  }
}

__device__ void store(float* to, const float (&x)[kElements]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}
__device__ void store(__nv_bfloat16* to, const float (&x)[kElements]) {
  __align__(16) __nv_bfloat162 packed[kElements / 2];
#pragma unroll
  for (int i = 0; i < kElements / 2; ++i) packed[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(packed);
}
__device__ void store(__half* to, const float (&x)[kElements]) {
  __align__(16) __half2 packed[kElements / 2];
#pragma unroll
  for (int i = 0; i < kElements / 2; ++i) packed[i] = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(packed);
}

// Rows of q, or of k, or of v, of one width: groups * kElements elements.
template <class T>
struct Rows {
  T* data;
  std::int64_t groups;

  __device__ void fill(std::int64_t row, std::uint64_t start) const {
    for (std::int64_t group = threadIdx.x % 32; group < groups; group += 32) {
      float values[kElements];
      gaussians(start, group, values);
      store(data + (row * groups + group) * kElements, values);
    }
  }
  // Every head of the row gets the same `head_groups` groups.
  __device__ void repeat(std::int64_t row, std::int64_t head_groups, const float* head) const {
    for (std::int64_t group = threadIdx.x; group < groups; group += blockDim.x) {
      float values[kElements];
#pragma unroll
      for (int i = 0; i < kElements; ++i) values[i] = head[group % head_groups * kElements + i];
      store(data + (row * groups + group) * kElements, values);
    }
  }
};

// A warp makes a row.
template <class T>
__global__ void fill_rows(Turns turns, const std::int64_t* tokens, std::int64_t rows, Rows<T> q, Rows<T> k, Rows<T> v) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / 32;
  if (row >= rows) return;
  const std::int64_t token = tokens[row];
  q.fill(row, sequence(turns.seed, kQuery, direction_of(turns, token)));
  k.fill(row, sequence(turns.seed, kKey, token));
  v.fill(row, sequence(turns.seed, kValue, token));
}

// A row that is not random: the query of a question or of a needle chunk's landmark, or a needle's key and value.
struct Mark {
  std::int64_t row;
  std::int32_t needle;
  bool is_key;
};

// A block makes a row.
template <class T>
__global__ void fill_marks(const Mark* marks, std::int64_t head_groups, const float* directions, const float* codes,
                           Rows<T> q, Rows<T> k, Rows<T> v) {
  const Mark mark = marks[blockIdx.x];
  const std::int64_t at = mark.needle * head_groups * kElements;
  if (mark.is_key) {
    k.repeat(mark.row, head_groups, directions + at);
    v.repeat(mark.row, head_groups, codes + at);
  } else {
    q.repeat(mark.row, head_groups, directions + at);
  }
}

struct Source {
  const AttentionProblem& problem;
  Turns turns;
  std::vector<std::int64_t> tokens;
  std::vector<Mark> marks;
  const std::vector<float>& directions;
  const std::vector<float>& codes;
};

template <class T>
void fill_as(const Source& source, std::byte* q, std::byte* k, std::byte* v, cudaStream_t stream) {
  const std::int64_t head_groups = source.problem.head_dim / kElements;
  const Rows<T> q_rows{reinterpret_cast<T*>(q), source.problem.heads * head_groups};
  const Rows<T> k_rows{reinterpret_cast<T*>(k), source.problem.kv_heads * head_groups};
  const Rows<T> v_rows{reinterpret_cast<T*>(v), source.problem.kv_heads * head_groups};
  const Buffer<std::int64_t> tokens = upload(source.tokens, stream);
  const Buffer<Mark> marks = upload(source.marks, stream);
  const Buffer<float> directions = upload(source.directions, stream);
  const Buffer<float> codes = upload(source.codes, stream);
  const auto blocks = static_cast<unsigned>((tokens.size() + kWarpsPerBlock - 1) / kWarpsPerBlock);
  fill_rows<T>
      <<<blocks, 32 * kWarpsPerBlock, 0, stream>>>(source.turns, tokens.data(), tokens.size(), q_rows, k_rows, v_rows);
  ringmark::cuda::check_launch("fill_rows");
  if (!marks.empty()) {
    fill_marks<T><<<static_cast<unsigned>(marks.size()), 128, 0, stream>>>(marks.data(), head_groups, directions.data(),
                                                                           codes.data(), q_rows, k_rows, v_rows);
    ringmark::cuda::check_launch("fill_marks");
  }
  ringmark::cuda::check(cudaStreamSynchronize(stream), "make the planted layer");
}

float gaussian(std::uint64_t bits) {
  const float radius = std::sqrt(-2.0f * std::log((static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f));
  return radius * std::cos(2.0f * std::numbers::pi_v<float> * static_cast<float>(bits & 0xFFFFFFu) * 0x1p-24f);
}

double cosine(const float* a, const float* b, std::int64_t count) {
  double product = 0.0, a_square = 0.0, b_square = 0.0;
  for (std::int64_t x = 0; x < count; ++x) {
    product += double{a[x]} * double{b[x]};
    a_square += double{a[x]} * double{a[x]};
    b_square += double{b[x]} * double{b[x]};
  }
  return product / std::sqrt(a_square * b_square);
}

}  // namespace

PlantedDevice::PlantedDevice(const AttentionProblem& problem, const AttentionPolicy& policy,
                             const runtime::PlantedOptions& options)
    : problem_(problem),
      options_(options),
      needles_(runtime::place_needles(problem, policy, options.needles, [&](std::int64_t needle) {
        return draw(sequence(options.seed, kPlace, needle), 0);
      })) {
  if (problem.head_dim % kElements != 0) {
    fail_bad_input("head-dim " + std::to_string(problem.head_dim) +
                   ": a layer planted on the GPU takes multiples of 8");
  }
  for (std::int64_t needle = 0; needle < needles_.count(); ++needle) {
    std::vector<float> direction(static_cast<std::size_t>(problem.head_dim));
    float square = 0.0f;
    for (std::int64_t x = 0; x < problem.head_dim; ++x) {
      float& component = direction[static_cast<std::size_t>(x)];
      component = gaussian(draw(sequence(options.seed, kQuestion, needle), x));
      square += component * component;
      codes_.push_back(draw(sequence(options.seed, kCode, needle), x) & 1u ? 1.0f : -1.0f);
    }
    // Question and key have the same length l with scale * l * l = kNeedleLogit.
    const float factor = std::sqrt(kNeedleLogit / problem.scale / square);
    for (const float component : direction) directions_.push_back(component * factor);
  }
}

void PlantedDevice::fill(std::span<const TokenId> tokens, std::byte* q, std::byte* k, std::byte* v,
                         cudaStream_t stream) const {
  if (tokens.empty()) return;
  const auto stay = static_cast<std::uint64_t>(options_.agreement * 0x1p53);
  Source source{problem_, {options_.seed, stay, static_cast<std::uint64_t>(options_.topics)}, {}, {}, directions_,
                codes_};
  source.tokens.reserve(tokens.size());
  for (const TokenId token : tokens) {
    const auto row = static_cast<std::int64_t>(source.tokens.size());
    source.tokens.push_back(token.value());
    for (const runtime::PlantedNeedles::NeedleAt* at :
         {&needles_.question_at, &needles_.landmark_at, &needles_.key_at}) {
      const auto found = at->find(token.value());
      if (found != at->end()) {
        source.marks.push_back({row, static_cast<std::int32_t>(found->second), at == &needles_.key_at});
      }
    }
  }
  switch (problem_.dtype) {
    case DType::kFloat32: return fill_as<float>(source, q, k, v, stream);
    case DType::kBfloat16: return fill_as<__nv_bfloat16>(source, q, k, v, stream);
    case DType::kFloat16: return fill_as<__half>(source, q, k, v, stream);
  }
}

std::vector<Question> PlantedDevice::questions(std::span<const TokenId> tokens) const {
  std::vector<Question> questions;
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const auto found = needles_.question_at.find(tokens[row].value());
    if (found != needles_.question_at.end()) questions.push_back({static_cast<std::int64_t>(row), found->second});
  }
  return questions;
}

std::span<const float> PlantedDevice::code(std::int64_t needle) const {
  const auto width = static_cast<std::size_t>(problem_.head_dim);
  return {codes_.data() + static_cast<std::size_t>(needle) * width, width};
}

bool PlantedDevice::recovered(std::int64_t needle, std::span<const float> out) const {
  for (std::int64_t head = 0; head < problem_.heads; ++head) {
    const float* row = out.data() + head * problem_.head_dim;
    std::int64_t closest = -1;
    double best = 0.7;
    for (std::int64_t candidate = 0; candidate < needles(); ++candidate) {
      const double similarity = cosine(code(candidate).data(), row, problem_.head_dim);
      if (similarity > best) {
        best = similarity;
        closest = candidate;
      }
    }
    if (closest != needle) return false;
  }
  return true;
}

}  // namespace ringmark::bench
