// Position encodings against tests/kernels/golden/positions.txt: 50-digit arithmetic by a script that shares no code
// with this library.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/positions/alibi.h"
#include "kernels/positions/encoding.h"
#include "tests/kernels/rotated_rows.h"

namespace ringmark::kernels {
namespace {

// What the script wrote, a line at a time, with the encoding that stands above it.
class GoldenLines {
 public:
  GoldenLines() : file_(RINGMARK_TEST_DATA "/../kernels/golden/positions.txt") {}

  bool next() {
    std::string line;
    if (!std::getline(file_, line)) return false;
    words_.clear();
    words_.str(line);
    words_ >> word_;
    if (word_ == "encoding") read_encoding();
    return true;
  }
  const std::string& word() const { return word_; }
  const PositionEncoding& encoding() const { return encoding_; }
  std::int64_t whole() { return read<std::int64_t>(); }
  double real() { return read<double>(); }

 private:
  template <class T>
  T read() {
    T value{};
    words_ >> value;
    EXPECT_FALSE(words_.fail());
    return value;
  }
  void read_encoding() {
    const auto name = read<std::string>();
    encoding_ = {};
    for (const PositionKind kind : kRotatingKinds) {
      if (name == name_of(kind)) encoding_.kind = kind;
    }
    EXPECT_TRUE(encoding_.rotates()) << name;
    encoding_.rotary_dim = whole();
    encoding_.theta = real();
    encoding_.factor = real();
    encoding_.original_length = whole();
    const double extra = real();
    if (encoding_.kind == PositionKind::kHope) encoding_.period_multiplier = extra;
    if (encoding_.kind == PositionKind::kHopePartial) encoding_.kept_ratio = extra;
    encoding_.validate(encoding_.rotary_dim);
  }

  std::ifstream file_;
  std::istringstream words_;
  std::string word_;
  PositionEncoding encoding_;
};

TEST(PositionsGolden, frequencies) {
  GoldenLines lines;
  int compared = 0;
  std::vector<double> w;
  while (lines.next()) {
    if (lines.word() == "encoding") w = inverse_frequencies(lines.encoding(), lines.encoding().rotary_dim);
    if (lines.word() != "w") continue;
    const std::int64_t pair = lines.whole();
    const double expected = lines.real();
    EXPECT_NEAR(w.at(static_cast<std::size_t>(pair)), expected, 2e-15 * expected) << name_of(lines.encoding().kind);
    ++compared;
  }
  EXPECT_GT(compared, 40);
}

// Public bug 25 and the table of errors of fp32 angles: 1,000,003 is off by 0.02 there, 16,777,217 by 0.7.
TEST(PositionsGolden, cosines_and_sines_at_millions) {
  GoldenLines lines;
  int compared = 0;
  while (lines.next()) {
    if (lines.word() != "angle") continue;
    const std::int64_t position = lines.whole();
    const std::int64_t pair = lines.whole();
    const double cosine = lines.real();
    const double sine = lines.real();
    const UnitPairs unit = turn_unit_pairs(lines.encoding(), lines.encoding().rotary_dim, position);
    EXPECT_NEAR(unit.cosine.at(static_cast<std::size_t>(pair)), cosine, 2e-7) << position << " pair " << pair;
    EXPECT_NEAR(unit.sine.at(static_cast<std::size_t>(pair)), sine, 2e-7) << position << " pair " << pair;
    ++compared;
  }
  EXPECT_GT(compared, 500);
}

TEST(PositionsGolden, gains_decays_and_slopes) {
  GoldenLines lines;
  int compared = 0;
  while (lines.next()) {
    const std::string& word = lines.word();
    double got = 0.0;
    if (word == "gain") {
      got = scale_gain(lines.encoding());
    } else if (word == "zeta") {
      const std::vector<double> decay = xpos_decay(lines.whole());
      const double per_position = decay.at(static_cast<std::size_t>(lines.whole()));
      got = std::exp(per_position * static_cast<double>(lines.whole()));
    } else if (word == "slope") {
      const std::vector<float> slopes = alibi_slopes(lines.whole());
      got = double{slopes.at(static_cast<std::size_t>(lines.whole()))};
    } else {
      continue;
    }
    const double expected = lines.real();
    EXPECT_NEAR(got, expected, (word == "slope" ? 6e-8 : 1e-12) * expected) << word;
    ++compared;
  }
  EXPECT_EQ(compared, 1 + 5 + 1 + 8 + 12 + 32);
}

}  // namespace
}  // namespace ringmark::kernels
