// How a layer marks positions in its queries and keys: a plain value, and what follows from it.
//
// A rotary encoding turns the pairs of the first rotary_dim elements of a head: pair j of a row at position n by the
// angle n w_j, with w_j in radians a position. Scores then depend on the distance of query and key alone.
// d = rotary_dim, s = factor, L = original_length; pairs j = 0..d/2-1; w_j = theta^(-2j/d) unless said otherwise:
//     rope          w_j                                                                   RoFormer, arXiv 2104.09864
//     pi            w_j / s: positions are squeezed into the trained range                arXiv 2306.15595
//     ntk           theta s^(d/(d-2)) in place of theta: the first pair keeps its w, the last is s times slower
//     yarn          between the two, by how often a pair turns within L, and a gain of scores; arXiv 2309.00071
//     hope          w_j where w_j >= 2 pi period_multiplier / L or j = 0, else 0          arXiv 2410.21216 as in HiLS
//     hope-partial  n = kept_ratio d/2 pairs: (L/2pi)^(-j/(n-1)), the slowest with period L; the rest 0
//     xpos          w_j and amplitudes zeta_j^((n - center)/512) of queries, the inverse of keys,
//                   zeta_j = (2j + 0.4 d) / (1.4 d); arXiv 2212.10554. The score has zeta_j^(distance/512), always
//                   finite; the amplitudes themselves are not, so positions far from `center` are refused.
//     alibi         no rotation: a bias of the score, kernels/positions/alibi.h
//     none          nothing (NoPE)
// Frequencies that depend on the length (dynamic NTK, dynamic YaRN) are left out on purpose: keys that are rotated
// already, in a cache or in a published landmark, would no longer fit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace ringmark::kernels {

// Cosines and sines are tested to 1e-6 up to here, on both sides of 0.
inline constexpr std::int64_t kMaxPosition = std::int64_t{1} << 28;

enum class PositionKind { kNone, kRope, kPi, kNtk, kYarn, kHope, kHopePartial, kXpos, kAlibi };

// Which two elements of a head form pair j. A layer that is read with the wrong one gives wrong scores, not an error.
enum class PairLayout {
  kHalf,         // j and j + d/2: Hugging Face, NeoX
  kInterleaved,  // 2j and 2j + 1: Meta, DeepSeek
};

// Where YaRN's gain of scores goes. Both give the same scores when the whole head is rotated.
enum class GainPlace {
  kScale,     // attention_factor^2 into the scale of the softmax, over all elements of the head (DeepSeek)
  kRotation,  // attention_factor into cos and sin of queries and keys, over the rotated elements only (Hugging Face)
};

std::string_view name_of(PositionKind kind);
std::string_view name_of(PairLayout layout);

struct PositionEncoding {
  PositionKind kind = PositionKind::kNone;
  PairLayout layout = PairLayout::kHalf;
  std::int64_t rotary_dim = 0;                  // even, at most head_dim; 0: the whole head
  double theta = 10000.0;                       // above 1
  double factor = 1.0;                          // s >= 1: pi, ntk, yarn
  std::int64_t original_length = 0;             // L, positions seen in training: yarn, hope, hope-partial
  double beta_fast = 32.0;                      // yarn: pairs with more turns within L stay as they are
  double beta_slow = 1.0;                       // yarn: pairs with fewer are interpolated
  std::optional<double> attention_factor = {};  // yarn; unset: 0.1 ln s + 1
  GainPlace gain_place = GainPlace::kScale;     // yarn
  double period_multiplier = 2.0;               // m, hope: turns within L that a kept pair makes at least
  double kept_ratio = 0.5;                      // hope-partial: kept pairs over all, above 0
  std::int64_t center = 0;                      // xpos: where the amplitudes are 1

  bool rotates() const { return kind != PositionKind::kNone && kind != PositionKind::kAlibi; }
  // rotary_dim with its default resolved.
  std::int64_t rotary_dim_of(std::int64_t head_dim) const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  // Throws Error(kBadInput) naming field, value and limit.
  void validate(std::int64_t head_dim) const;
};

// w of every pair, [rotary_dim / 2], descending; pairs that stand still have 0. Empty for kinds that do not rotate.
std::vector<double> inverse_frequencies(const PositionEncoding& encoding, std::int64_t head_dim);

// Factor of the softmax scale: attention_factor^2 for YaRN with GainPlace::kScale, else 1.
double scale_gain(const PositionEncoding& encoding);
// Factor of cos and sin: attention_factor for YaRN with GainPlace::kRotation, else 1.
double rotation_gain(const PositionEncoding& encoding);

// ln zeta_j / 512 of every pair, [rotary_dim / 2], all below 0: the logarithm of xPos's relative factor is this times
// the distance.
std::vector<double> xpos_decay(std::int64_t rotary_dim);

// Throws Error(kBadInput) for a position beyond kMaxPosition, and for one whose xPos amplitude may leave the range of
// the storage type: 2^60, in fp16 2^8.
void check_positions(const PositionEncoding& encoding, DType dtype, std::span<const std::int64_t> positions);

}  // namespace ringmark::kernels
