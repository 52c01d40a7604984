#include "kvstore/block_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/error.h"
#include "kvstore/block_codes.h"

namespace ringmark::kvstore {
namespace {

using kernels::BlockShape;

constexpr std::int64_t kAlignment = 64;
constexpr std::uint32_t kInfinityBits = 0x7F800000u;

// Below it a reciprocal overflows. Values so small lose precision, at most half of this scale.
constexpr float kSmallestScale = std::numeric_limits<float>::min();

std::uint32_t magnitude_bits(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu; }

// The smallest magnitude that rounds to infinity.
float overflow_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: break;
    case DType::kBfloat16: return std::bit_cast<float>(0x7F7F8000u);
    case DType::kFloat16: return 65520.0f;
  }
  return std::numeric_limits<float>::infinity();
}

// Calls `use` with the codes of a quantised format.
template <class Use>
auto with_codes(BlockFormat format, Use use) {
  switch (format) {
    case BlockFormat::kFp8: return use(Fp8Codes{});
    case BlockFormat::kInt8: return use(Int8Codes{});
    default: return use(Int4Codes{});
  }
}

bool is_quantised(BlockFormat format) {
  return format == BlockFormat::kFp8 || format == BlockFormat::kInt8 || format == BlockFormat::kInt4;
}

// The element type of a format that is not quantised.
DType element_of(BlockFormat format, const BlockShape& shape) {
  if (format == BlockFormat::kBfloat16) return DType::kBfloat16;
  if (format == BlockFormat::kFloat16) return DType::kFloat16;
  return shape.dtype;
}

std::string place(bool keys, std::int64_t index) {
  return fmt::format("{} {} of a block", keys ? "K channel" : "V token", index);
}

// K and V rows of a block, in order, as fp32: [2 * chunk_size][head_dim].
std::vector<float> widen_block(std::span<const std::byte> block, const BlockShape& shape) {
  const std::int64_t count = 2 * shape.chunk_size * shape.head_dim;
  std::vector<float> wide(static_cast<std::size_t>(count));
  widen(block.data(), shape.dtype, count, wide.data());
  return wide;
}

// Where the parts of a quantised block lie.
struct QuantisedLayout {
  QuantisedLayout(const BlockShape& shape, std::int64_t row_bytes_of_codes)
      : channels(shape.head_dim), tokens(shape.chunk_size), row_bytes(row_bytes_of_codes) {}

  std::int64_t scales() const { return channels + tokens; }
  std::int64_t codes_offset() const { return scales() * static_cast<std::int64_t>(sizeof(float)); }
  std::int64_t bytes() const { return codes_offset() + 2 * tokens * row_bytes; }

  std::int64_t channels;
  std::int64_t tokens;
  std::int64_t row_bytes;
};

float scale_for(std::uint32_t largest_bits, float largest_code) {
  if (largest_bits == 0) return 0.0f;
  const float scale = std::max(std::bit_cast<float>(largest_bits) / largest_code, kSmallestScale);
  return std::isinf(scale * largest_code) ? std::nextafter(scale, 0.0f) : scale;
}

// Scales of a block whose rows are `wide`: K by channel, then V by token.
std::vector<float> scales_of(const std::vector<float>& wide, const QuantisedLayout& layout, float largest_code,
                             BlockFormat format) {
  std::vector<std::uint32_t> largest(static_cast<std::size_t>(layout.scales()), 0);
  const float* row = wide.data();
  for (std::int64_t t = 0; t < layout.tokens; ++t, row += layout.channels) {
    for (std::int64_t c = 0; c < layout.channels; ++c) largest[c] = std::max(largest[c], magnitude_bits(row[c]));
  }
  for (std::int64_t t = 0; t < layout.tokens; ++t, row += layout.channels) {
    std::uint32_t of_token = 0;
    for (std::int64_t c = 0; c < layout.channels; ++c) of_token = std::max(of_token, magnitude_bits(row[c]));
    largest[layout.channels + t] = of_token;
  }
  std::vector<float> scales;
  for (std::int64_t i = 0; i < layout.scales(); ++i) {
    const bool keys = i < layout.channels;
    if (largest[i] >= kInfinityBits) {
      fail_bad_input(fmt::format("{} holds {}; {} keeps finite values only",
                                 place(keys, keys ? i : i - layout.channels), std::bit_cast<float>(largest[i]),
                                 name_of(format)));
    }
    scales.push_back(scale_for(largest[i], largest_code));
  }
  return scales;
}

template <class Codes>
void encode_quantised(std::span<const std::byte> block, const BlockShape& shape, BlockFormat format,
                      std::byte* encoded) {
  const QuantisedLayout layout(shape, Codes::row_bytes(shape.head_dim));
  std::vector<float> wide = widen_block(block, shape);
  std::vector<float> scales = scales_of(wide, layout, Codes::kLargest, format);
  std::memcpy(encoded, scales.data(), static_cast<std::size_t>(layout.codes_offset()));

  for (float& scale : scales) scale = scale == 0.0f ? 0.0f : 1.0f / scale;
  float* row = wide.data();
  std::byte* codes = encoded + layout.codes_offset();
  for (std::int64_t t = 0; t < 2 * layout.tokens; ++t, row += layout.channels, codes += layout.row_bytes) {
    if (t < layout.tokens) {
      for (std::int64_t c = 0; c < layout.channels; ++c) row[c] *= scales[c];
    } else {
      const float inverse = scales[layout.channels + t - layout.tokens];
      for (std::int64_t c = 0; c < layout.channels; ++c) row[c] *= inverse;
    }
    Codes::pack(row, layout.channels, codes);
  }
}

// Scales as they lie in the encoded block, checked.
std::vector<float> read_scales(const std::byte* encoded, const QuantisedLayout& layout, float largest_code,
                               DType dtype) {
  std::vector<float> scales(static_cast<std::size_t>(layout.scales()));
  std::memcpy(scales.data(), encoded, static_cast<std::size_t>(layout.codes_offset()));
  const float limit = overflow_of(dtype);
  for (std::int64_t i = 0; i < layout.scales(); ++i) {
    if (scales[i] >= 0.0f && scales[i] * largest_code < limit) continue;
    const bool keys = i < layout.channels;
    fail_bad_input(fmt::format("{} has the scale {}; scales are from 0 to {}",
                               place(keys, keys ? i : i - layout.channels), scales[i],
                               std::min(limit, std::numeric_limits<float>::max()) / largest_code));
  }
  return scales;
}

// Unpacked codes to values in place; whether all of them may stand under their scales.
template <class ScaleOf>
bool scale_row(float* row, std::int64_t count, float largest_code, ScaleOf scale_of) {
  std::uint32_t wrong = 0;
  for (std::int64_t c = 0; c < count; ++c) {
    const float scale = scale_of(c);
    const bool in_range = std::fabs(row[c]) <= largest_code;
    const bool has_scale = (scale != 0.0f) | (row[c] == 0.0f);
    wrong |= static_cast<std::uint32_t>(!(in_range & has_scale));
    row[c] *= scale;
  }
  return wrong == 0;
}

template <class Codes>
void decode_quantised(const std::byte* encoded, const BlockShape& shape, std::byte* block) {
  const QuantisedLayout layout(shape, Codes::row_bytes(shape.head_dim));
  const std::vector<float> scales = read_scales(encoded, layout, Codes::kLargest, shape.dtype);
  std::vector<float> row(static_cast<std::size_t>(layout.channels));
  const std::byte* codes = encoded + layout.codes_offset();
  for (std::int64_t t = 0; t < 2 * layout.tokens; ++t, codes += layout.row_bytes, block += shape.row_bytes()) {
    const bool keys = t < layout.tokens;
    const float of_token = keys ? 0.0f : scales[layout.channels + t - layout.tokens];
    Codes::unpack(codes, layout.channels, row.data());
    const float* const of_channels = scales.data();
    const bool right =
        keys ? scale_row(row.data(), layout.channels, Codes::kLargest, [=](std::int64_t c) { return of_channels[c]; })
             : scale_row(row.data(), layout.channels, Codes::kLargest, [=](std::int64_t) { return of_token; });
    if (!right) {
      fail_bad_input(fmt::format("{} token {} of a block holds a code that its scale does not allow", keys ? "K" : "V",
                                 keys ? t : t - layout.tokens));
    }
    narrow(row.data(), shape.dtype, layout.channels, block);
  }
}

void convert_rows(const std::byte* source, DType from, DType to, const BlockShape& shape, std::byte* out) {
  std::vector<float> row(static_cast<std::size_t>(shape.head_dim));
  for (std::int64_t t = 0; t < 2 * shape.chunk_size; ++t) {
    widen(source, from, shape.head_dim, row.data());
    narrow(row.data(), to, shape.head_dim, out);
    source += shape.head_dim * size_of(from);
    out += shape.head_dim * size_of(to);
  }
}

// A finite value that decodes to infinity is refused, whichever of the two roundings makes it so.
void check_range(std::span<const std::byte> block, const BlockShape& shape, DType element, const std::byte* encoded) {
  const std::vector<float> exact = widen_block(block, shape);
  std::vector<float> kept(exact.size());
  widen(encoded, element, static_cast<std::int64_t>(exact.size()), kept.data());
  const float limit = overflow_of(shape.dtype);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(exact.size()); ++i) {
    if (!std::isfinite(exact[i]) || (std::isfinite(kept[i]) && std::fabs(kept[i]) < limit)) continue;
    const std::int64_t token = i / shape.head_dim;
    const bool keys = token < shape.chunk_size;
    fail_bad_input(fmt::format("{} holds {}; as {} it would become infinite",
                               place(keys, keys ? i % shape.head_dim : token - shape.chunk_size), exact[i],
                               name_of(element)));
  }
}

TensorError error_between(std::span<const float> exact, std::span<const float> kept) {
  TensorError error;
  double squares = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error.largest = std::max(error.largest, std::fabs(double{kept[i]} - double{exact[i]}));
    squares += double{exact[i]} * double{exact[i]};
  }
  if (squares > 0.0) error.relative = error.largest / std::sqrt(squares / static_cast<double>(exact.size()));
  return error;
}

}  // namespace

std::string_view name_of(BlockFormat format) {
  switch (format) {
    case BlockFormat::kAsInput: return "as-input";
    case BlockFormat::kBfloat16: return "bf16";
    case BlockFormat::kFloat16: return "fp16";
    case BlockFormat::kFp8: return "fp8";
    case BlockFormat::kInt8: return "int8";
    case BlockFormat::kInt4: return "int4";
  }
  return "?";
}

BlockCodec::BlockCodec(BlockFormat format, const BlockShape& shape) : format_(format), shape_(shape) {}

std::int64_t BlockCodec::encoded_bytes() const {
  std::int64_t bytes = 2 * shape_.chunk_size * shape_.head_dim * size_of(element_of(format_, shape_));
  if (is_quantised(format_)) {
    bytes = with_codes(format_,
                       [&](auto codes) { return QuantisedLayout(shape_, codes.row_bytes(shape_.head_dim)).bytes(); });
  }
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void BlockCodec::encode(std::span<const std::byte> block, std::span<std::byte> encoded) const {
  require(std::ssize(block) == shape_.bytes() && std::ssize(encoded) == encoded_bytes(), "a block has its size");
  std::fill(encoded.end() - std::min<std::int64_t>(kAlignment, std::ssize(encoded)), encoded.end(), std::byte{0});
  if (is_quantised(format_)) {
    with_codes(format_, [&](auto codes) { encode_quantised<decltype(codes)>(block, shape_, format_, encoded.data()); });
    return;
  }
  const DType element = element_of(format_, shape_);
  if (element == shape_.dtype) {
    std::copy(block.begin(), block.end(), encoded.begin());
    return;
  }
  convert_rows(block.data(), shape_.dtype, element, shape_, encoded.data());
  check_range(block, shape_, element, encoded.data());
}

void BlockCodec::decode(std::span<const std::byte> encoded, std::span<std::byte> block) const {
  require(std::ssize(block) == shape_.bytes() && std::ssize(encoded) == encoded_bytes(), "a block has its size");
  if (is_quantised(format_)) {
    with_codes(format_, [&](auto codes) { decode_quantised<decltype(codes)>(encoded.data(), shape_, block.data()); });
    return;
  }
  const DType element = element_of(format_, shape_);
  if (element == shape_.dtype) {
    std::copy_n(encoded.begin(), block.size(), block.begin());
    return;
  }
  convert_rows(encoded.data(), element, shape_.dtype, shape_, block.data());
}

BlockError BlockCodec::error_of(std::span<const std::byte> block) const {
  std::vector<std::byte> encoded(static_cast<std::size_t>(encoded_bytes()));
  std::vector<std::byte> decoded(block.size());
  encode(block, encoded);
  decode(encoded, decoded);
  const std::vector<float> exact = widen_block(block, shape_);
  const std::vector<float> kept = widen_block(decoded, shape_);
  const std::size_t half = exact.size() / 2;
  const std::span all_exact(exact);
  const std::span all_kept(kept);
  return {.keys = error_between(all_exact.first(half), all_kept.first(half)),
          .values = error_between(all_exact.subspan(half), all_kept.subspan(half))};
}

}  // namespace ringmark::kvstore
