#include "bench/gpu/dense_baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "bench/gpu/planted_device.h"
#include "core/cuda/stream.h"
#include "kernels/cuda/attend.h"
#include "kernels/cuda/blocks.h"
#include "partition/layout.h"
#include "runtime/cuda/workspace.h"
#ifdef RINGMARK_HAS_CUDNN
#include "kernels/cuda/cudnn/attend_dense.h"
#endif

namespace ringmark::bench {
namespace {

using kernels::cuda::LayerShape;
using ringmark::cuda::Buffer;

constexpr std::int64_t kWholeUpTo = 262144;

double median_ms(int repeats, cudaStream_t stream, const std::function<void()>& work) {
  work();
  std::vector<float> times;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    ringmark::cuda::Event begin, end;
    begin.record(stream);
    work();
    end.record(stream);
    end.wait();
    times.push_back(end.since(begin));
  }
  std::sort(times.begin(), times.end());
  return double{times[times.size() / 2]};
}

// The rows of a layer and its blocks, all slots keys.
struct DenseLayer {
  explicit DenseLayer(const AttentionProblem& p, const AttentionPolicy& policy)
      : problem(p),
        grid(problem, policy),
        layout(partition::make_layout(grid, 1, partition::Balance::kContiguous)),
        tokens(layout.tokens_of(RankId(0))),
        shape(LayerShape::of(problem, policy, grid)),
        q(p.tokens * p.heads * row_bytes()),
        k(p.tokens * p.kv_heads * row_bytes()),
        v(p.tokens * p.kv_heads * row_bytes()) {
    PlantedDevice(problem, policy, {}).fill(tokens, q.data(), k.data(), v.data(), stream);
  }

  std::int64_t row_bytes() const { return problem.head_dim * size_of(problem.dtype); }

  AttentionProblem problem;
  partition::SequenceGrid grid;
  partition::Layout layout;
  std::vector<TokenId> tokens;
  LayerShape shape;
  ringmark::cuda::Stream stream;
  Buffer<std::byte> q, k, v;
};

double time_own(DenseLayer& layer, const AttentionPolicy& policy, int repeats) {
  const AttentionProblem& p = layer.problem;
  const auto path = kernels::cuda::choose_path(layer.shape);
  const auto row_geometry = kernels::cuda::row_geometry(layer.grid, layer.tokens);
  const auto chunk_geometry = kernels::cuda::chunk_geometry(layer.grid, policy);
  const std::int64_t chunks = layer.grid.chunk_count();
  std::vector<std::int64_t> first_rows;
  std::vector<std::int32_t> slots;
  for (ChunkId chunk(0); chunk.value() < chunks; ++chunk) {
    first_rows.push_back(layer.layout.first_row(chunk));
    slots.push_back(chunk_geometry[static_cast<std::size_t>(chunk.value())].slots_end);
  }
  Buffer<kernels::cuda::RowGeometry> rows(p.tokens);
  Buffer<kernels::cuda::ChunkGeometry> device_chunks(chunks);
  Buffer<std::int64_t> device_first_rows(chunks);
  Buffer<std::int32_t> device_slots(chunks);
  rows.upload(row_geometry.data(), p.tokens, layer.stream);
  device_chunks.upload(chunk_geometry.data(), chunks, layer.stream);
  device_first_rows.upload(first_rows.data(), chunks, layer.stream);
  device_slots.upload(slots.data(), chunks, layer.stream);
  const std::int64_t block_bytes = kernels::BlockShape::of(p).bytes();
  Buffer<std::byte> arena(chunks * p.kv_heads * block_bytes);
  const auto order = kernels::cuda::block_order(path);
  Buffer<std::int32_t> beyond_fp16(1);
  beyond_fp16.fill_bytes(0, layer.stream);
  kernels::cuda::pack_blocks(layer.shape, layer.k.data(), layer.v.data(), device_first_rows.data(), device_slots.data(),
                             chunks, order, arena.data(), beyond_fp16.data(), layer.stream);
  std::vector<const std::byte*> addresses;
  for (std::int64_t block = 0; block < chunks * p.kv_heads; ++block) {
    addresses.push_back(arena.data() + block * block_bytes);
  }
  Buffer<const std::byte*> table(chunks * p.kv_heads);
  table.upload(addresses.data(), table.size(), layer.stream);
  Buffer<float> out(p.tokens * p.heads * p.head_dim), lse(p.tokens * p.heads);
  layer.stream.wait();
  return median_ms(repeats, layer.stream, [&] {
    kernels::cuda::attend_window(path, layer.shape, {rows.data(), device_chunks.data(), p.tokens},
                                 {table.data(), order}, layer.q.data(), {0, p.tokens}, out.data(), lse.data(),
                                 layer.stream);
  });
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
  DenseLayer layer(measured, policy);
  std::vector<DenseTime> times;
  times.push_back({"dense causal, own kernel", factor * time_own(layer, policy, fewer), flops, note});
#ifdef RINGMARK_HAS_CUDNN
  if (kernels::cuda::cudnn::DenseAttention::supports(layer.shape)) {
    kernels::cuda::cudnn::DenseAttention dense(layer.shape, measured.tokens, false);
    Buffer<std::byte> out(measured.tokens * measured.heads * layer.row_bytes());
    const double ms = median_ms(fewer, layer.stream, [&] {
      dense.attend({layer.q.data(), layer.k.data(), layer.v.data(), out.data(), nullptr}, layer.stream);
    });
    times.push_back({"dense causal, cuDNN", factor * ms, flops, note});
  }
#endif
  return times;
}

}  // namespace ringmark::bench
