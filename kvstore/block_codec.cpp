#include "kvstore/block_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "kvstore/block_codes.h"
#include "kvstore/element_lanes.h"

namespace ringmark::kvstore {
namespace {

using kernels::BlockShape;

constexpr std::int64_t kAlignment = 64;

// Below it a reciprocal overflows. Values so small lose precision, at most half of this scale.
constexpr float kSmallestScale = std::numeric_limits<float>::min();

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

// Calls `use` with an element type as a constant.
template <class Use>
void with_dtype(DType dtype, Use use) {
  switch (dtype) {
    case DType::kFloat32: return use(std::integral_constant<DType, DType::kFloat32>{});
    case DType::kBfloat16: return use(std::integral_constant<DType, DType::kBfloat16>{});
    case DType::kFloat16: return use(std::integral_constant<DType, DType::kFloat16>{});
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

float scale_for(float largest, float largest_code) {
  if (largest == 0.0f) return 0.0f;
  const float scale = std::max(largest / largest_code, kSmallestScale);
  return std::isinf(scale * largest_code) ? std::nextafter(scale, 0.0f) : scale;
}

// The unsigned type of an element's bits: without the sign they order as magnitudes do, NaN above infinity.
template <DType dtype>
using Bits = std::conditional_t<dtype == DType::kFloat32, std::uint32_t, std::uint16_t>;

// The largest magnitude of each K channel, then of each V token.
template <DType dtype>
std::vector<float> largest_magnitudes(const std::byte* row, const QuantisedLayout& layout) {
  const auto magnitude_at = [&](std::int64_t channel) {
    Bits<dtype> bits;
    std::memcpy(&bits, row + channel * size_of(dtype), sizeof(bits));
    return static_cast<Bits<dtype>>(bits & std::numeric_limits<std::make_signed_t<Bits<dtype>>>::max());
  };
  std::vector<Bits<dtype>> largest(static_cast<std::size_t>(layout.scales()), 0);
  for (std::int64_t t = 0; t < layout.tokens; ++t, row += layout.channels * size_of(dtype)) {
    for (std::int64_t c = 0; c < layout.channels; ++c) largest[c] = std::max(largest[c], magnitude_at(c));
  }
  for (std::int64_t t = 0; t < layout.tokens; ++t, row += layout.channels * size_of(dtype)) {
    Bits<dtype> of_token = 0;
    for (std::int64_t c = 0; c < layout.channels; ++c) of_token = std::max(of_token, magnitude_at(c));
    largest[layout.channels + t] = of_token;
  }
  std::vector<float> magnitudes(largest.size());
  widen(reinterpret_cast<const std::byte*>(largest.data()), dtype, layout.scales(), magnitudes.data());
  return magnitudes;
}

// K by channel, then V by token.
std::vector<float> scales_of(const std::vector<float>& largest, const QuantisedLayout& layout, float largest_code,
                             BlockFormat format) {
  std::vector<float> scales(largest.size());
  for (std::int64_t i = 0; i < layout.scales(); ++i) {
    const bool keys = i < layout.channels;
    if (!std::isfinite(largest[i])) {
      fail_bad_input(fmt::format("{} holds {}; {} keeps finite values only",
                                 place(keys, keys ? i : i - layout.channels), largest[i], name_of(format)));
    }
    scales[i] = scale_for(largest[i], largest_code);
  }
  return scales;
}

// Calls `use` with each row of codes in order, and with the factors of its lanes: a function of the first channel and
// the number of lanes.
template <class Use>
void for_rows(const QuantisedLayout& layout, const std::vector<float>& factors, Use use) {
  for (std::int64_t t = 0; t < layout.tokens; ++t) {
    use(t, [&](std::int64_t first, std::int64_t lanes) { return load_lanes(factors.data() + first, lanes); });
  }
  for (std::int64_t t = 0; t < layout.tokens; ++t) {
    const __m256 of_token = _mm256_set1_ps(factors[layout.channels + t]);
    use(layout.tokens + t, [=](std::int64_t, std::int64_t) { return of_token; });
  }
}

template <DType dtype, class Codes>
void encode_quantised(const std::byte* block, const BlockShape& shape, BlockFormat format, std::byte* encoded) {
  const QuantisedLayout layout(shape, Codes::row_bytes(shape.head_dim));
  std::vector<float> scales = scales_of(largest_magnitudes<dtype>(block, layout), layout, Codes::kLargest, format);
  std::memcpy(encoded, scales.data(), static_cast<std::size_t>(layout.codes_offset()));

  for (float& scale : scales) scale = scale == 0.0f ? 0.0f : 1.0f / scale;
  for_rows(layout, scales, [&](std::int64_t t, auto inverses) {
    const std::byte* const row = block + t * shape.row_bytes();
    const auto scaled_at = [&](std::int64_t first, std::int64_t lanes) {
      return _mm256_mul_ps(load_lanes<dtype>(row + first * size_of(dtype), lanes), inverses(first, lanes));
    };
    Codes::pack(scaled_at, layout.channels, encoded + layout.codes_offset() + t * layout.row_bytes);
  });
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

// Whether codes lie where they may: none over the largest, none but 0 under the scale 0.
class CodeCheck {
 public:
  explicit CodeCheck(float largest_code) : largest_(_mm256_set1_ps(largest_code)) {}

  void see(__m256 codes, __m256 scales) {
    const __m256 too_large = _mm256_cmp_ps(magnitude(codes), largest_, _CMP_GT_OQ);
    const __m256 unscaled = _mm256_cmp_ps(scales, _mm256_setzero_ps(), _CMP_EQ_OQ);
    const __m256 stray = _mm256_and_ps(unscaled, _mm256_cmp_ps(codes, _mm256_setzero_ps(), _CMP_NEQ_OQ));
    wrong_ = _mm256_or_ps(wrong_, _mm256_or_ps(too_large, stray));
  }
  bool passed() const { return _mm256_movemask_ps(wrong_) == 0; }

 private:
  __m256 largest_;
  __m256 wrong_ = _mm256_setzero_ps();
};

template <DType dtype, class Codes>
void decode_quantised(const std::byte* encoded, const BlockShape& shape, std::byte* block) {
  const QuantisedLayout layout(shape, Codes::row_bytes(shape.head_dim));
  const std::vector<float> scales = read_scales(encoded, layout, Codes::kLargest, dtype);
  for_rows(layout, scales, [&](std::int64_t t, auto scales_at) {
    std::byte* const row = block + t * shape.row_bytes();
    CodeCheck check(Codes::kLargest);
    const auto put = [&](std::int64_t first, std::int64_t lanes, __m256 codes) {
      const __m256 scales_here = scales_at(first, lanes);
      check.see(codes, scales_here);
      store_bytes(row + first * size_of(dtype), lanes * size_of(dtype),
                  ElementLanes<dtype>::narrow_finite(_mm256_mul_ps(codes, scales_here)));
    };
    Codes::unpack(encoded + layout.codes_offset() + t * layout.row_bytes, layout.channels, put);
    if (check.passed()) return;
    const bool keys = t < layout.tokens;
    fail_bad_input(fmt::format("{} token {} of a block holds a code that its scale does not allow", keys ? "K" : "V",
                               keys ? t : t - layout.tokens));
  });
}

// Returns whether every finite element is still finite once it is converted back.
template <DType from, DType to>
bool convert_rows(const std::byte* source, const BlockShape& shape, std::byte* out) {
  __m256 lost = _mm256_setzero_ps();
  const __m256 infinity = _mm256_set1_ps(std::numeric_limits<float>::infinity());
  const __m256 limit = _mm256_set1_ps(overflow_of(from));
  for_lanes(2 * shape.chunk_size * shape.head_dim, [&](std::int64_t first, std::int64_t lanes) {
    const __m256 exact = load_lanes<from>(source + first * size_of(from), lanes);
    const auto kept = ElementLanes<to>::narrow(exact);
    store_bytes(out + first * size_of(to), lanes * size_of(to), kept);
    const __m256 finite = _mm256_cmp_ps(magnitude(exact), infinity, _CMP_LT_OQ);
    const __m256 over = _mm256_cmp_ps(magnitude(ElementLanes<to>::widen(kept)), limit, _CMP_GE_OQ);
    lost = _mm256_or_ps(lost, _mm256_and_ps(finite, over));
  });
  return _mm256_movemask_ps(lost) == 0;
}

bool convert(const std::byte* source, DType from, DType to, const BlockShape& shape, std::byte* out) {
  bool finite = true;
  with_dtype(from, [&](auto source_type) {
    with_dtype(to, [&](auto type) { finite = convert_rows<source_type, type>(source, shape, out); });
  });
  return finite;
}

// Names the first finite value that decodes to infinity, whichever of the two roundings makes it so.
[[noreturn]] void fail_at_overflow(std::span<const std::byte> block, const BlockShape& shape, DType element,
                                   const std::byte* encoded) {
  const std::vector<float> exact = widen_block(block, shape);
  std::vector<float> kept(exact.size());
  widen(encoded, element, std::ssize(exact), kept.data());
  const float limit = overflow_of(shape.dtype);
  std::int64_t i = 0;
  while (!std::isfinite(exact[i]) || (std::isfinite(kept[i]) && std::fabs(kept[i]) < limit)) ++i;
  const std::int64_t token = i / shape.head_dim;
  const bool keys = token < shape.chunk_size;
  fail_bad_input(fmt::format("{} holds {}; as {} it would become infinite",
                             place(keys, keys ? i % shape.head_dim : token - shape.chunk_size), exact[i],
                             name_of(element)));
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
    with_dtype(shape_.dtype, [&](auto dtype) {
      with_codes(format_, [&](auto codes) {
        encode_quantised<dtype, decltype(codes)>(block.data(), shape_, format_, encoded.data());
      });
    });
    return;
  }
  const DType element = element_of(format_, shape_);
  if (element == shape_.dtype) {
    std::copy(block.begin(), block.end(), encoded.begin());
    return;
  }
  if (!convert(block.data(), shape_.dtype, element, shape_, encoded.data())) {
    fail_at_overflow(block, shape_, element, encoded.data());
  }
}

void BlockCodec::decode(std::span<const std::byte> encoded, std::span<std::byte> block) const {
  require(std::ssize(block) == shape_.bytes() && std::ssize(encoded) == encoded_bytes(), "a block has its size");
  if (is_quantised(format_)) {
    with_dtype(shape_.dtype, [&](auto dtype) {
      with_codes(format_,
                 [&](auto codes) { decode_quantised<dtype, decltype(codes)>(encoded.data(), shape_, block.data()); });
    });
    return;
  }
  const DType element = element_of(format_, shape_);
  if (element == shape_.dtype) {
    std::copy_n(encoded.begin(), block.size(), block.begin());
    return;
  }
  // What encode() has let through comes back finite.
  convert(encoded.data(), element, shape_.dtype, shape_, block.data());
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
