#include "kernels/positions/rotate.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <random>
#include <vector>

#include "kernels/landmarks.h"
#include "kernels/positions/slot_position.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/rotated_rows.h"

namespace ringmark::kernels {
namespace {

constexpr std::array kDTypes = {DType::kFloat32, DType::kBfloat16, DType::kFloat16};
constexpr std::array kLayouts = {PairLayout::kHalf, PairLayout::kInterleaved};

PositionEncoding encoding_of(PositionKind kind, PairLayout layout = PairLayout::kHalf) {
  PositionEncoding encoding;
  encoding.kind = kind;
  encoding.layout = layout;
  encoding.factor = 4.0;
  encoding.original_length = 8192;
  return encoding;
}

std::vector<std::byte> random_bytes(std::mt19937_64& random, std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xFF);
  return bytes;
}

std::vector<std::byte> rotated_bytes(const PositionEncoding& encoding, const RowsView& rows,
                                     const std::vector<std::int64_t>& positions, int threads = 1) {
  std::vector<std::byte> out(static_cast<std::size_t>(rows.bytes()));
  rotate(encoding, Side::kQuery, rows, positions, out, threads);
  return out;
}

TEST(Rotate, quarter_and_small_turns_by_hand) {
  // d = 4: pair 0 turns by 1 rad a position, pair 1 by 0.01.
  const PositionEncoding half = encoding_of(PositionKind::kRope);
  const std::vector<float> turned = rotated(half, Side::kQuery, {1.0f, 0.0f, 0.0f, 2.0f}, {1});
  EXPECT_FLOAT_EQ(turned[0], 0.54030231f);   // cos 1
  EXPECT_FLOAT_EQ(turned[2], 0.84147098f);   // sin 1
  EXPECT_FLOAT_EQ(turned[1], -0.01999967f);  // -2 sin 0.01
  EXPECT_FLOAT_EQ(turned[3], 1.99990000f);   // 2 cos 0.01
  const PositionEncoding interleaved = encoding_of(PositionKind::kRope, PairLayout::kInterleaved);
  EXPECT_EQ(rotated(interleaved, Side::kQuery, {1.0f, 0.0f, 0.0f, 2.0f}, {1}),
            (std::vector<float>{turned[0], turned[2], turned[1], turned[3]}));
  EXPECT_EQ(rotated(half, Side::kKey, {1.0f, 2.0f, 3.0f, 4.0f}, {0}), (std::vector<float>{1.0f, 2.0f, 3.0f, 4.0f}));
}

// Every pair of every kind and dimension, at positions of all sizes: fp64 angles of 64-bit mantissas as oracle.
TEST(Rotate, angles_are_right_to_two_units_of_fp32_at_any_position) {
  std::mt19937_64 random(1);
  std::vector<std::int64_t> positions = {0,       1,       255,       256,        257,         258,
                                         131'071, 131'072, 1'000'003, 16'777'217, kMaxPosition};
  for (int i = 0; i < 40; ++i) positions.push_back(static_cast<std::int64_t>(random() >> (35 + i % 28)) % kMaxPosition);
  for (int i = 0; i < 10; ++i) positions.push_back(-positions[positions.size() - 20]);
  double largest = 0.0;
  for (const PositionKind kind : kRotatingKinds) {
    if (kind == PositionKind::kXpos) continue;  // rotates as rope, amplified
    for (const std::int64_t head_dim : {4, 8, 64, 80, 96, 128, 192, 256}) {
      const PositionEncoding encoding = encoding_of(kind);
      const std::vector<double> w = inverse_frequencies(encoding, head_dim);
      for (const std::int64_t position : positions) {
        const UnitPairs unit = turn_unit_pairs(encoding, head_dim, position);
        for (std::size_t j = 0; j < w.size(); ++j) {
          const long double angle = static_cast<long double>(position) * static_cast<long double>(w[j]);
          largest = std::max(largest, std::fabs(static_cast<double>(std::cos(angle) - unit.cosine[j])));
          largest = std::max(largest, std::fabs(static_cast<double>(std::sin(angle) - unit.sine[j])));
        }
      }
    }
  }
  EXPECT_LT(largest, 1.2e-7);
}

// Public bug 25: in bf16 neighbours are one from 257 on, in fp32 from 2^24.
TEST(Rotate, neighbours_differ) {
  const PositionEncoding encoding = encoding_of(PositionKind::kRope);
  for (const std::int64_t position : {255, 256, 257, 131'071, 1'000'003, 16'777'216, 16'777'217}) {
    const UnitPairs here = turn_unit_pairs(encoding, 64, position);
    const UnitPairs next = turn_unit_pairs(encoding, 64, position + 1);
    // One radian on: the addition theorem.
    EXPECT_NEAR(here.cosine[0] * std::cos(1.0) - here.sine[0] * std::sin(1.0), next.cosine[0], 3e-7) << position;
  }
}

TEST(Rotate, turns_add_up) {
  std::mt19937_64 random(2);
  for (const PositionKind kind : {PositionKind::kRope, PositionKind::kPi, PositionKind::kNtk, PositionKind::kYarn,
                                  PositionKind::kHope, PositionKind::kHopePartial}) {
    for (const PairLayout layout : kLayouts) {
      const PositionEncoding encoding = encoding_of(kind, layout);
      const std::vector<float> row = normal_floats(random, 128);
      for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{3, 4},
                                 {1'000'003, -1'000'003},
                                 {16'000'000, 777'217},
                                 {-5, 131'072}}) {
        const std::vector<float> twice =
            rotated(encoding, Side::kQuery, rotated(encoding, Side::kQuery, row, {m}), {n});
        const std::vector<float> once = rotated(encoding, Side::kQuery, row, {m + n});
        for (std::size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(twice[i], once[i], 3e-6) << name_of(kind);
      }
    }
  }
}

// Public bugs 22 and 26: the score of a query and a key depends on their distance, wherever both stand.
TEST(Rotate, scores_depend_on_the_distance_alone) {
  std::mt19937_64 random(3);
  for (const PositionKind kind : kRotatingKinds) {
    for (const std::int64_t distance : {0, 1, 63, 1000}) {
      const std::vector<float> q = normal_floats(random, 128);
      const std::vector<float> k = normal_floats(random, 128);
      const auto score = [&](std::int64_t base) {
        PositionEncoding encoding = encoding_of(kind);
        encoding.center = base;
        return dot(rotated(encoding, Side::kQuery, q, {base + distance}), rotated(encoding, Side::kKey, k, {base}));
      };
      const double at_zero = score(0);
      for (const std::int64_t base : {400'000, 1'000'000, 16'000'000}) {
        EXPECT_NEAR(score(base), at_zero, 1.5e-5) << name_of(kind) << " at " << base;
      }
    }
  }
}

// 2.1 of RoFormer: per pair (q.k) cos f + (q0 k1 - q1 k0) sin f with f = distance w; xPos times zeta^(distance / 512).
TEST(Rotate, the_score_of_a_distance_is_the_formula) {
  std::mt19937_64 random(4);
  constexpr std::int64_t kDims = 64;
  for (const PositionKind kind : {PositionKind::kRope, PositionKind::kXpos}) {
    PositionEncoding encoding = encoding_of(kind);
    encoding.center = 5000;
    const std::vector<double> w = inverse_frequencies(encoding, kDims);
    const std::vector<double> decay = xpos_decay(kDims);
    const std::vector<float> q = normal_floats(random, kDims);
    const std::vector<float> k = normal_floats(random, kDims);
    for (const std::int64_t distance : {0, 1, 500, 3000}) {
      double expected = 0.0;
      for (std::size_t j = 0; j < kDims / 2; ++j) {
        const auto [a, b] = place_of_pair(encoding.layout, j, kDims);
        const double f = static_cast<double>(distance) * w[j];
        const double along = double{q[a]} * k[a] + double{q[b]} * k[b];
        const double across = double{q[a]} * k[b] - double{q[b]} * k[a];
        const double fading = kind == PositionKind::kXpos ? std::exp(static_cast<double>(distance) * decay[j]) : 1.0;
        expected += fading * (along * std::cos(f) + across * std::sin(f));
      }
      for (const std::int64_t at : {0, 4321}) {
        const double score =
            dot(rotated(encoding, Side::kQuery, q, {at + distance}), rotated(encoding, Side::kKey, k, {at}));
        EXPECT_NEAR(score, expected, 1.5e-5) << name_of(kind) << " distance " << distance;
      }
    }
  }
}

TEST(Rotate, yarn_gives_the_same_scores_with_its_gain_in_the_scale_or_in_the_rotation) {
  std::mt19937_64 random(5);
  const std::vector<float> q = normal_floats(random, 64);
  const std::vector<float> k = normal_floats(random, 64);
  PositionEncoding in_scale = encoding_of(PositionKind::kYarn);
  PositionEncoding in_rotation = in_scale;
  in_rotation.gain_place = GainPlace::kRotation;
  const auto score = [&](const PositionEncoding& encoding) {
    return scale_gain(encoding) *
           dot(rotated(encoding, Side::kQuery, q, {9000}), rotated(encoding, Side::kKey, k, {777}));
  };
  EXPECT_NEAR(score(in_scale), score(in_rotation), 1e-5);
}

// Whatever they hold, NaN and minus zero too, elements that are not turned stay the same bits.
TEST(Rotate, leaves_still_pairs_and_the_rest_of_the_head_bit_for_bit) {
  std::mt19937_64 random(6);
  for (const DType dtype : kDTypes) {
    for (const PairLayout layout : kLayouts) {
      PositionEncoding encoding = encoding_of(PositionKind::kHope, layout);
      encoding.rotary_dim = 96;
      const std::vector<double> w = inverse_frequencies(encoding, 128);
      const std::vector<std::byte> bytes = random_bytes(random, 5 * 3 * 128 * size_of(dtype));
      const RowsView rows{bytes.data(), dtype, 5, 3, 128};
      const std::vector<std::byte> out = rotated_bytes(encoding, rows, {0, 7, 1'000'003, 16'777'217, -4});
      const RowsView turned{out.data(), dtype, 5, 3, 128};
      std::vector<bool> still(128, true);
      for (std::size_t j = 0; j < w.size(); ++j) {
        const auto [first, second] = place_of_pair(layout, j, 96);
        still[first] = still[second] = w[j] == 0.0;
      }
      ASSERT_GT(std::count(still.begin(), still.end(), true), 32);
      for (std::int64_t row = 0; row < 5; ++row) {
        for (std::int64_t i = 0; i < 128; ++i) {
          if (!still[static_cast<std::size_t>(i)]) continue;
          const std::int64_t at = i * size_of(dtype);
          EXPECT_EQ(
              std::memcmp(turned.row(row, 2) + at, rows.row(row, 2) + at, static_cast<std::size_t>(size_of(dtype))), 0)
              << "element " << i;
        }
      }
    }
  }
}

TEST(Rotate, rounds_once) {
  std::mt19937_64 random(7);
  const std::vector<float> values = normal_floats(random, 4 * 2 * 80);
  const std::vector<std::int64_t> positions = {3, 1'000'003, 12, 16'777'217};
  for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
    for (const PairLayout layout : kLayouts) {
      const PositionEncoding encoding = encoding_of(PositionKind::kYarn, layout);
      const StoredTensor stored(dtype, 4, 2, 80, values);
      std::vector<float> wide(values.size());
      widen(stored.view().data, dtype, static_cast<std::int64_t>(wide.size()), wide.data());
      const StoredTensor widened(DType::kFloat32, 4, 2, 80, wide);
      const std::vector<std::byte> exact = rotated_bytes(encoding, widened.view(), positions);
      std::vector<std::byte> expected(static_cast<std::size_t>(stored.view().bytes()));
      std::memcpy(wide.data(), exact.data(), exact.size());
      narrow(wide.data(), dtype, static_cast<std::int64_t>(wide.size()), expected.data());
      EXPECT_EQ(rotated_bytes(encoding, stored.view(), positions), expected);
    }
  }
}

// Public bug 23: explicit ids, in any order and with gaps, are what counts, not the place of a row nor the number of
// rows.
TEST(Rotate, a_row_depends_on_itself_and_its_position_alone) {
  std::mt19937_64 random(8);
  const std::vector<std::int64_t> positions = {0, 1, 5, 6, 100, 5, 16'777'217, 2};
  const auto count = static_cast<std::int64_t>(positions.size());
  const StoredTensor stored(DType::kBfloat16, count, 3, 64, normal_floats(random, count * 3 * 64));
  const PositionEncoding encoding = encoding_of(PositionKind::kRope);
  const std::vector<std::byte> all = rotated_bytes(encoding, stored.view(), positions);
  EXPECT_EQ(rotated_bytes(encoding, stored.view(), positions, 3), all);
  for (std::int64_t row = 0; row < count; ++row) {
    const std::vector<std::byte> alone =
        rotated_bytes(encoding, stored.view().slice(row, row + 1), {positions[static_cast<std::size_t>(row)]});
    EXPECT_EQ(std::memcmp(alone.data(), all.data() + row * 3 * 64 * 2, alone.size()), 0) << "row " << row;
  }
  std::vector<std::byte> in_place(all.size());
  std::memcpy(in_place.data(), stored.view().data, in_place.size());
  rotate(encoding, Side::kQuery, {in_place.data(), DType::kBfloat16, count, 3, 64}, positions, in_place, 2);
  EXPECT_EQ(in_place, all);
}

TEST(Rotate, nothing_is_rotated_without_an_encoding) {
  std::mt19937_64 random(9);
  const std::vector<std::byte> bytes = random_bytes(random, 2 * 7 * 2);
  for (const PositionKind kind : {PositionKind::kNone, PositionKind::kAlibi}) {
    const RowsView rows{bytes.data(), DType::kBfloat16, 2, 1, 7};
    EXPECT_EQ(rotated_bytes(encoding_of(kind), rows, {1, kMaxPosition + 1}), bytes);
  }
}

// The landmark of one chunk with keys at `base` and behind, a head dimension of 32 and two query heads.
class ChunkAt {
 public:
  explicit ChunkAt(const PositionEncoding& encoding) : encoding_(encoding) {
    problem_.tokens = problem_.chunk_size = 16;
    problem_.heads = 2;
    problem_.head_dim = kDims;
    problem_.dtype = DType::kFloat32;
    problem_.landmark_slots = true;
    std::mt19937_64 random(10);
    keys_ = normal_floats(random, 16 * kDims);
    queries_ = normal_floats(random, 2 * kDims);
  }

  // [heads][kDims], then the biases.
  std::vector<float> landmark(std::int64_t base) const {
    std::vector<std::int64_t> positions;
    for (std::int64_t slot = 0; slot < 16; ++slot) positions.push_back(base + position_of_slot(slot, 16, true));
    const std::int64_t own = positions.back();
    return landmark_of(rotated(encoding_, Side::kKey, keys_, positions),
                       rotated(encoding_, Side::kQuery, queries_, {own, own}));
  }
  std::vector<float> landmark_without_rotation() const { return landmark_of(keys_, queries_); }

  // Both keys by the same shift.
  std::vector<float> moved(const std::vector<float>& landmark, std::int64_t shift) const {
    std::vector<float> keys(landmark.begin(), landmark.begin() + 2 * kDims);
    keys = rotated(encoding_, Side::kKey, keys, {shift, shift});
    keys.insert(keys.end(), landmark.end() - 2, landmark.end());
    return keys;
  }

 private:
  static constexpr std::int64_t kDims = 32;

  std::vector<float> landmark_of(const std::vector<float>& keys, const std::vector<float>& queries) const {
    const partition::SequenceGrid grid(problem_, {});
    const StoredBlocks blocks(problem_, grid, keys, keys);
    const StoredTensor rows(DType::kFloat32, 1, 2, kDims, queries);
    std::vector<float> record(static_cast<std::size_t>(LandmarkShape::of(problem_, Scorer::kHils).record_floats()));
    build_landmarks(problem_, Scorer::kHils, grid, std::array{ChunkId(0)}, rows.view(), blocks.table(), record, 1);
    return record;
  }

  PositionEncoding encoding_;
  AttentionProblem problem_;
  std::vector<float> keys_;
  std::vector<float> queries_;
};

TEST(Rotate, a_landmark_moves_to_another_base_by_one_rotation) {
  for (const PositionKind kind : {PositionKind::kRope, PositionKind::kYarn, PositionKind::kHope}) {
    const ChunkAt chunk(encoding_of(kind));
    const std::vector<float> at_zero = chunk.landmark(0);
    for (const std::int64_t base : {1, 65'536, 1'000'003, 16'000'000}) {
      const std::vector<float> there = chunk.landmark(base);
      const std::vector<float> moved = chunk.moved(at_zero, base);
      for (std::size_t i = 0; i < there.size(); ++i) EXPECT_NEAR(moved[i], there[i], 1e-5) << name_of(kind) << base;
    }
    // A summary of keys without positions is another object: no rotation makes it that of rotated keys.
    const std::vector<float> unrotated = chunk.moved(chunk.landmark_without_rotation(), 0);
    double apart = 0.0;
    for (std::size_t i = 0; i < unrotated.size(); ++i) apart += std::fabs(unrotated[i] - at_zero[i]);
    EXPECT_GT(apart, 1.0);
  }
}

}  // namespace
}  // namespace ringmark::kernels
