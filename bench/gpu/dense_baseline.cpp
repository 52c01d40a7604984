#include "bench/gpu/dense_baseline.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/gpu/device_layer.h"
#include "bench/gpu/timing.h"
#include "kernels/cuda/attend.h"
#ifdef RINGMARK_HAS_CUDNN
#include "kernels/cuda/cudnn/attend_dense.h"
#endif

namespace ringmark::bench {
namespace {

using ringmark::cuda::Buffer;

constexpr std::int64_t kWholeUpTo = 262144;

double time_own(const DeviceLayer& layer, int repeats) {
  const AttentionProblem& p = layer.problem;
  const auto path = kernels::cuda::choose_path(layer.shape);
  const LayerBlocks blocks(layer, kernels::cuda::block_order(path));
  const Buffer<float> out(p.tokens * p.heads * p.head_dim), lse(p.tokens * p.heads);
  const Spread ms = time_on(layer.stream, repeats, [&] {
    kernels::cuda::attend_window(path, layer.shape, layer.geometry(), blocks.view(), layer.q.data(), layer.all(),
                                 out.data(), lse.data(), layer.stream);
  });
  return ms.median;
}

}  // namespace

std::vector<DenseTime> time_dense(const AttentionProblem& problem, int repeats) {
  AttentionProblem measured = problem;
  measured.landmark_slots = false;
  const bool whole = problem.tokens <= kWholeUpTo;
  if (!whole) {
    measured.heads = problem.group();
    measured.kv_heads = 1;
  }
  const double factor = whole ? 1.0 : static_cast<double>(problem.kv_heads);
  const std::string note = whole ? "" : fmt::format(" (one kv head measured, times {})", problem.kv_heads);
  const double n = static_cast<double>(problem.tokens);
  const double flops =
      4.0 * static_cast<double>(problem.head_dim) * static_cast<double>(problem.heads) * n * (n + 1) / 2;
  const int fewer = whole ? std::min(repeats, 3) : 1;
  const AttentionPolicy policy{problem.tokens, 0, 0, Scorer::kNone};
  const DeviceLayer layer(measured, policy);
  std::vector<DenseTime> times;
  times.push_back({"dense causal, own kernel", factor * time_own(layer, fewer), flops, note});
#ifdef RINGMARK_HAS_CUDNN
  if (kernels::cuda::cudnn::DenseAttention::supports(layer.shape)) {
    kernels::cuda::cudnn::DenseAttention dense(layer.shape, measured.tokens, false);
    const Buffer<std::byte> out(measured.tokens * measured.heads * layer.row_bytes());
    const Spread ms = time_on(layer.stream, fewer, [&] {
      dense.attend({layer.q.data(), layer.k.data(), layer.v.data(), out.data(), nullptr}, layer.stream);
    });
    times.push_back({"dense causal, cuDNN", factor * ms.median, flops, note});
  }
#endif
  return times;
}

}  // namespace ringmark::bench
