// How fast blocks are encoded and decoded, by format and the layer's element type: one thread, bytes of the layer's own
// blocks a second. usage: codec_bench
//
// What is decoded must lie as near to the input as the format allows; a wrong answer fails the benchmark.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <span>
#include <vector>

#include "kvstore/block_codec.h"

namespace ringmark {
namespace {

using kvstore::BlockCodec;
using kvstore::BlockFormat;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kChunk = 64;
constexpr std::int64_t kHeadDims[] = {64, 128};
constexpr std::int64_t kBlocks = 64;
constexpr int kRounds = 30;  // the fastest counts: a shared host disturbs
constexpr DType kDTypes[] = {DType::kBfloat16, DType::kFloat16, DType::kFloat32};

struct Format {
  BlockFormat format;
  double largest_error;  // over the root mean square of normal values, none of which is above 6
};
constexpr Format kFormats[] = {{BlockFormat::kBfloat16, 6 * 0x1p-8},
                               {BlockFormat::kFloat16, 6 * 0x1p-8},  // bf16 rounds it again
                               {BlockFormat::kFp8, 6 * 0x1p-4},
                               {BlockFormat::kInt8, 6 * 0x1p-7},
                               {BlockFormat::kInt4, 6 * 0x1p-3}};

std::vector<std::byte> make_blocks(const kernels::BlockShape& shape) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(kBlocks * 2 * shape.chunk_size * shape.head_dim));
  for (float& value : values) value = std::clamp(normal(random), -6.0f, 6.0f);
  std::vector<std::byte> blocks(static_cast<std::size_t>(kBlocks * shape.bytes()));
  narrow(values.data(), shape.dtype, std::ssize(values), blocks.data());
  return blocks;
}

// Calls `use` with the number of every block and returns the seconds that it took.
template <class Use>
double time_blocks(Use use) {
  const auto begin = Clock::now();
  for (std::int64_t block = 0; block < kBlocks; ++block) use(static_cast<std::size_t>(block));
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Prints one line of the table. False when a block came back wrong.
bool measure(const kernels::BlockShape& shape, const Format& of) {
  const BlockCodec codec(of.format, shape);
  const std::vector<std::byte> blocks = make_blocks(shape);
  const auto block_bytes = static_cast<std::size_t>(shape.bytes());
  const auto encoded_bytes = static_cast<std::size_t>(codec.encoded_bytes());
  std::vector<std::byte> encoded(kBlocks * encoded_bytes);
  std::vector<std::byte> decoded(blocks.size());
  double encoding = 1e9, decoding = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    encoding = std::min(encoding, time_blocks([&](std::size_t n) {
                          codec.encode(std::span(blocks).subspan(n * block_bytes, block_bytes),
                                       std::span(encoded).subspan(n * encoded_bytes, encoded_bytes));
                        }));
    decoding = std::min(decoding, time_blocks([&](std::size_t n) {
                          codec.decode(std::span(encoded).subspan(n * encoded_bytes, encoded_bytes),
                                       std::span(decoded).subspan(n * block_bytes, block_bytes));
                        }));
  }
  double error = 0.0;
  for (std::size_t n = 0; n < kBlocks; ++n) {
    const kvstore::BlockError of_block = codec.error_of(std::span(blocks).subspan(n * block_bytes, block_bytes));
    error = std::max({error, of_block.keys.relative, of_block.values.relative});
  }
  const bool right = error <= of.largest_error;
  const auto bytes = static_cast<double>(blocks.size());
  fmt::print("{:>6} {:>5} {:>6} {:>14.2f} {:>14.2f} {:>9.5f}  {}\n", name_of(shape.dtype), shape.head_dim,
             name_of(of.format), bytes / encoding / 1e9, bytes / decoding / 1e9, error, right ? "correct" : "WRONG");
  return right;
}

bool run() {
  fmt::print("{:>6} {:>5} {:>6} {:>14} {:>14} {:>9}\n", "layer", "d", "kept", "encode GB/s", "decode GB/s", "error");
  bool right = true;
  for (const DType dtype : kDTypes) {
    for (const std::int64_t head_dim : kHeadDims) {
      for (const Format& format : kFormats) right = measure({kChunk, head_dim, dtype}, format) && right;
    }
  }
  return right;
}

}  // namespace
}  // namespace ringmark

int main() { return ringmark::run() ? EXIT_SUCCESS : EXIT_FAILURE; }
