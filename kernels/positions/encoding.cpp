#include "kernels/positions/encoding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace ringmark::kernels {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;
constexpr double kXposSpan = 512.0;
constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1 << 20;
constexpr double kMaxAttentionFactor = 100.0;
constexpr std::int64_t kMinOriginalLength = 7;  // the first whole number above the period of pair 0, 2 pi

[[noreturn]] void refuse(const PositionEncoding& encoding, const std::string& text) {
  fail_bad_input(fmt::format("position encoding {}: {}", name_of(encoding.kind), text));
}

// The comparison is written so that NaN fails it.
void check_range(const PositionEncoding& encoding, const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return;
  refuse(encoding, fmt::format("{} = {} is outside [{}, {}]", field, value, low, high));
}

void check_above(const PositionEncoding& encoding, const char* field, double value, double low, double high) {
  if (value > low && value <= high) return;
  refuse(encoding, fmt::format("{} = {} is not above {} and at most {}", field, value, low, high));
}

void check_rotary_dim(const PositionEncoding& encoding, std::int64_t head_dim) {
  const std::int64_t dims = encoding.rotary_dim_of(head_dim);
  if (encoding.rotary_dim < 0 || dims > head_dim) {
    refuse(encoding, fmt::format("rotary_dim = {} is outside [0, head_dim = {}]", encoding.rotary_dim, head_dim));
  }
  if (dims % 2 != 0) refuse(encoding, fmt::format("rotary_dim = {} is odd: elements are turned in pairs", dims));
  if (encoding.kind == PositionKind::kNtk && dims < 4) {
    refuse(encoding,
           fmt::format("rotary_dim = {} is below 4: its only pair cannot slow down and keep its speed", dims));
  }
}

// theta^(-2j/d), scaled pair by pair.
template <class Scale>
std::vector<double> powers_of(double theta, std::int64_t dims, Scale scale) {
  std::vector<double> w(static_cast<std::size_t>(dims / 2));
  for (std::size_t j = 0; j < w.size(); ++j) {
    const double power = std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(dims));
    w[j] = scale(j, power);
  }
  return w;
}

std::vector<double> yarn_frequencies(const PositionEncoding& encoding, std::int64_t dims) {
  const auto d = static_cast<double>(dims);
  // The pair, as a real number, that turns so often within L.
  const auto pair_of = [&](double turns) {
    return d * std::log(static_cast<double>(encoding.original_length) / (turns * kTwoPi)) /
           (2.0 * std::log(encoding.theta));
  };
  const double low = std::max(std::floor(pair_of(encoding.beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_of(encoding.beta_slow)), d - 1.0);
  if (high <= low) high = low + 0.001;  // a step, as the reference implementation has it
  return powers_of(encoding.theta, dims, [&](std::size_t j, double w) {
    const double ramp = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    return w * (1.0 + ramp * (1.0 / encoding.factor - 1.0));
  });
}

std::vector<double> hope_frequencies(const PositionEncoding& encoding, std::int64_t dims) {
  const double slowest = kTwoPi * encoding.period_multiplier / static_cast<double>(encoding.original_length);
  return powers_of(encoding.theta, dims, [&](std::size_t j, double w) { return j == 0 || w >= slowest ? w : 0.0; });
}

std::vector<double> partial_hope_frequencies(const PositionEncoding& encoding, std::int64_t dims) {
  std::vector<double> w(static_cast<std::size_t>(dims / 2), 0.0);
  const double all = static_cast<double>(w.size());
  const double kept = std::max(1.0, std::nearbyint(encoding.kept_ratio * all));
  const double turns = static_cast<double>(encoding.original_length) / kTwoPi;
  for (std::size_t j = 0; j < static_cast<std::size_t>(kept); ++j) {
    w[j] = j == 0 ? 1.0 : std::pow(turns, -static_cast<double>(j) / (kept - 1.0));
  }
  return w;
}

double attention_factor_of(const PositionEncoding& encoding) {
  return encoding.attention_factor.value_or(0.1 * std::log(encoding.factor) + 1.0);
}

}  // namespace

std::string_view name_of(PositionKind kind) {
  switch (kind) {
    case PositionKind::kNone: return "none";
    case PositionKind::kRope: return "rope";
    case PositionKind::kPi: return "pi";
    case PositionKind::kNtk: return "ntk";
    case PositionKind::kYarn: return "yarn";
    case PositionKind::kHope: return "hope";
    case PositionKind::kHopePartial: return "hope-partial";
    case PositionKind::kXpos: return "xpos";
    case PositionKind::kAlibi: return "alibi";
  }
  return "?";
}

std::string_view name_of(PairLayout layout) { return layout == PairLayout::kHalf ? "half" : "interleaved"; }

void PositionEncoding::validate(std::int64_t head_dim) const {
  if (!rotates()) return;
  check_rotary_dim(*this, head_dim);
  check_above(*this, "theta", theta, 1.0, kMaxTheta);
  check_range(*this, "factor", factor, 1.0, kMaxFactor);
  const bool yarn = kind == PositionKind::kYarn;
  if (yarn || kind == PositionKind::kHope || kind == PositionKind::kHopePartial) {
    check_range(*this, "original_length", static_cast<double>(original_length), kMinOriginalLength,
                static_cast<double>(kMaxPosition));
  }
  if (yarn) {
    check_above(*this, "beta_slow", beta_slow, 0.0, 1e6);
    check_range(*this, "beta_fast", beta_fast, beta_slow, 1e6);
    check_above(*this, "attention_factor", attention_factor_of(*this), 0.0, kMaxAttentionFactor);
  }
  check_above(*this, "period_multiplier", period_multiplier, 0.0, 1e6);
  check_above(*this, "kept_ratio", kept_ratio, 0.0, 1.0);
}

std::vector<double> inverse_frequencies(const PositionEncoding& encoding, std::int64_t head_dim) {
  const std::int64_t dims = encoding.rotary_dim_of(head_dim);
  const auto d = static_cast<double>(dims);
  const auto as_it_is = [](std::size_t, double w) { return w; };
  switch (encoding.kind) {
    case PositionKind::kNone:
    case PositionKind::kAlibi: break;
    case PositionKind::kRope:
    case PositionKind::kXpos: return powers_of(encoding.theta, dims, as_it_is);
    case PositionKind::kPi:
      return powers_of(encoding.theta, dims, [&](std::size_t, double w) { return w / encoding.factor; });
    case PositionKind::kNtk:
      return powers_of(encoding.theta * std::pow(encoding.factor, d / (d - 2.0)), dims, as_it_is);
    case PositionKind::kYarn: return yarn_frequencies(encoding, dims);
    case PositionKind::kHope: return hope_frequencies(encoding, dims);
    case PositionKind::kHopePartial: return partial_hope_frequencies(encoding, dims);
  }
  return {};
}

double scale_gain(const PositionEncoding& encoding) {
  if (encoding.kind != PositionKind::kYarn || encoding.gain_place != GainPlace::kScale) return 1.0;
  return attention_factor_of(encoding) * attention_factor_of(encoding);
}

double rotation_gain(const PositionEncoding& encoding) {
  if (encoding.kind != PositionKind::kYarn || encoding.gain_place != GainPlace::kRotation) return 1.0;
  return attention_factor_of(encoding);
}

std::vector<double> xpos_decay(std::int64_t rotary_dim) {
  const auto d = static_cast<double>(rotary_dim);
  std::vector<double> decay(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t j = 0; j < decay.size(); ++j) {
    decay[j] = std::log((2.0 * static_cast<double>(j) + 0.4 * d) / (1.4 * d)) / kXposSpan;
  }
  return decay;
}

void check_positions(const PositionEncoding& encoding, DType dtype, std::span<const std::int64_t> positions) {
  if (!encoding.rotates()) return;
  std::int64_t low = -kMaxPosition;
  std::int64_t high = kMaxPosition;
  if (encoding.kind == PositionKind::kXpos) {
    // Pair 0 has the strongest decay, zeta_0 = 0.4 / 1.4 whatever the dimension.
    const double largest_log = (dtype == DType::kFloat16 ? 8.0 : 60.0) * std::numbers::ln2;
    const auto reach = static_cast<std::int64_t>(largest_log / -xpos_decay(2)[0]);
    low = std::max(low, encoding.center - reach);
    high = std::min(high, encoding.center + reach);
  }
  for (const std::int64_t position : positions) {
    if (position >= low && position <= high) continue;
    refuse(encoding, fmt::format("position {} is outside [{}, {}]{}", position, low, high,
                                 encoding.kind == PositionKind::kXpos
                                     ? fmt::format(": its amplitude in {} would overflow", name_of(dtype))
                                     : ""));
  }
}

}  // namespace ringmark::kernels
