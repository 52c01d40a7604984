// An AttentionCase on the device: its queries, its geometry, and its blocks packed in the order that a path reads.
// Results start as NaN, and so do the K and V rows of landmark slots, which pack_blocks must not let through.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/cuda/buffer.h"
#include "core/cuda/stream.h"
#include "kernels/block_table.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/layer.h"
#include "tests/kernels/attention_case.h"

namespace ringmark::kernels::cuda {

// Whether the current device runs kernels of a path.
inline bool device_runs(Path path) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return false;
  int major = 0;
  ringmark::cuda::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "look at the GPU");
  return path == Path::kHopper ? major == 9 : major >= 8;
}

// First line of a test.
#define RINGMARK_SKIP_WITHOUT_GPU_FOR(path) \
  if (!::ringmark::kernels::cuda::device_runs(path)) GTEST_SKIP() << "no GPU for " << name_of(path)

template <class T>
ringmark::cuda::Buffer<T> upload(const std::vector<T>& host, cudaStream_t stream) {
  ringmark::cuda::Buffer<T> buffer(static_cast<std::int64_t>(host.size()));
  buffer.upload(host.data(), buffer.size(), stream);
  return buffer;
}

inline ringmark::cuda::Buffer<std::byte> upload(const RowsView& rows, cudaStream_t stream) {
  ringmark::cuda::Buffer<std::byte> buffer(rows.bytes());
  buffer.upload(rows.data, rows.bytes(), stream);
  return buffer;
}

// Waits for the stream.
template <class T>
std::vector<T> download(const ringmark::cuda::Buffer<T>& buffer, cudaStream_t stream) {
  std::vector<T> host(static_cast<std::size_t>(buffer.size()));
  buffer.download(host.data(), buffer.size(), stream);
  ringmark::cuda::check(cudaStreamSynchronize(stream), "wait for the GPU");
  return host;
}

// All chunks of a grid in one arena, rows in token order.
class PackedBlocks {
 public:
  PackedBlocks(const AttentionCase& c, const LayerShape& shape, BlockOrder order, cudaStream_t stream)
      : bytes_(BlockShape::of(c.problem).bytes()),
        order_(order),
        arena_(c.grid.chunk_count() * c.problem.kv_heads * bytes_) {
    std::vector<std::int64_t> first_rows;
    std::vector<std::int32_t> slots;
    for (const ChunkGeometry& chunk : chunk_geometry(c.grid, c.policy)) {
      first_rows.push_back(c.grid.tokens_of(ChunkId(static_cast<std::int64_t>(slots.size()))).begin.value());
      slots.push_back(chunk.slots_end);
    }
    const auto keys = upload(poisoned(c, c.keys.view()), stream);
    const auto values = upload(poisoned(c, c.values.view()), stream);
    const auto device_first_rows = upload(first_rows, stream);
    const auto device_slots = upload(slots, stream);
    arena_.fill_bytes(0xFF, stream);
    ringmark::cuda::Buffer<std::int32_t> beyond_fp16(1);
    beyond_fp16.fill_bytes(0, stream);
    pack_blocks(shape, keys.data(), values.data(), device_first_rows.data(), device_slots.data(), c.grid.chunk_count(),
                order, arena_.data(), beyond_fp16.data(), stream);
    std::vector<const std::byte*> addresses;
    for (std::int64_t block = 0; block * bytes_ < arena_.bytes(); ++block) {
      addresses.push_back(arena_.data() + block * bytes_);
    }
    table_ = upload(addresses, stream);
    ringmark::cuda::check(cudaStreamSynchronize(stream), "pack blocks");
  }

  DeviceBlocks view() const { return {table_.data(), order_}; }
  const ringmark::cuda::Buffer<std::byte>& arena() const { return arena_; }

 private:
  static std::vector<std::byte> poisoned(const AttentionCase& c, const RowsView& rows) {
    std::vector<std::byte> bytes(rows.data, rows.data + rows.bytes());
    const std::vector<float> nans(static_cast<std::size_t>(rows.heads * rows.head_dim), kNaN);
    const std::int64_t row_bytes = rows.heads * rows.head_dim * size_of(rows.dtype);
    for (const TokenId token : c.tokens) {
      if (c.grid.is_key(token)) continue;
      narrow(nans.data(), rows.dtype, rows.heads * rows.head_dim, bytes.data() + token.value() * row_bytes);
    }
    return bytes;
  }

  std::int64_t bytes_;
  BlockOrder order_;
  ringmark::cuda::Buffer<std::byte> arena_;
  ringmark::cuda::Buffer<const std::byte*> table_;
};

class DeviceCase {
 public:
  DeviceCase(const AttentionCase& c, Path path)
      : shape(LayerShape::of(c.problem, c.policy, c.grid)),
        row_count(c.problem.tokens),
        queries(upload(c.queries.view(), stream)),
        blocks(c, shape, block_order(path), stream),
        out(row_count * shape.heads * shape.head_dim),
        lse(row_count * shape.heads),
        rows_(upload(row_geometry(c.grid, c.tokens), stream)),
        chunks_(upload(chunk_geometry(c.grid, c.policy), stream)) {
    out.fill_bytes(0xFF, stream);
    lse.fill_bytes(0xFF, stream);
  }

  Geometry geometry() const { return {rows_.data(), chunks_.data(), row_count}; }
  RowRange all() const { return {0, row_count}; }

  // out and lse of all rows, when the stream is done.
  Results results(const AttentionCase& c) const {
    Results results(c.problem, row_count);
    results.out = download(out, stream);
    results.lse = download(lse, stream);
    return results;
  }

  ringmark::cuda::Stream stream;  // first: everything below is uploaded on it
  LayerShape shape;
  std::int64_t row_count;
  ringmark::cuda::Buffer<std::byte> queries;
  PackedBlocks blocks;
  ringmark::cuda::Buffer<float> out;  // [rows, H, d]
  ringmark::cuda::Buffer<float> lse;  // [rows, H]

 private:
  ringmark::cuda::Buffer<RowGeometry> rows_;
  ringmark::cuda::Buffer<ChunkGeometry> chunks_;
};

// "row R head H channel D: got X, want Y" of the first places of [rows, heads, channels] where two results differ by
// more than `bound` (or one of them is NaN); empty when there is none. -inf equals -inf.
inline std::string first_differences(const std::vector<float>& got, const std::vector<float>& want, std::int64_t heads,
                                     std::int64_t channels, double bound, int most = 5) {
  std::string text;
  if (got.size() != want.size()) return "different sizes";
  for (std::size_t i = 0; i < got.size() && most > 0; ++i) {
    if (got[i] == want[i] || std::fabs(double{got[i]} - double{want[i]}) <= bound) continue;
    const auto at = static_cast<std::int64_t>(i);
    text += "row " + std::to_string(at / channels / heads) + " head " + std::to_string(at / channels % heads) +
            " channel " + std::to_string(at % channels) + ": got " + std::to_string(got[i]) + ", want " +
            std::to_string(want[i]) + "\n";
    --most;
  }
  return text;
}

}  // namespace ringmark::kernels::cuda
