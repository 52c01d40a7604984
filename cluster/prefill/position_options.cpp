#include "cluster/prefill/position_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "cluster/options/option_values.h"
#include "core/error.h"
#include "core/problem.h"

namespace ringmark::cluster {
namespace {

using kernels::PairLayout;
using kernels::PositionEncoding;
using kernels::PositionKind;

constexpr std::array kKinds = {PositionKind::kNone,        PositionKind::kRope, PositionKind::kPi,
                               PositionKind::kNtk,         PositionKind::kYarn, PositionKind::kHope,
                               PositionKind::kHopePartial, PositionKind::kXpos, PositionKind::kAlibi};
constexpr std::array kLayouts = {PairLayout::kHalf, PairLayout::kInterleaved};
constexpr double kMaxNumber = 1e12;

// Which encodings an option belongs to, and whether they can do without it.
struct Meaning {
  const char* option;
  std::vector<PositionKind> kinds;
  bool needed;
};

std::vector<Meaning> meanings() {
  using enum PositionKind;
  const std::vector<PositionKind> rotations = {kRope, kPi, kNtk, kYarn, kHope, kHopePartial, kXpos};
  return {{"rope-theta", {kRope, kPi, kNtk, kYarn, kHope, kXpos}, false},
          {"rope-factor", {kPi, kNtk, kYarn}, true},
          {"rope-original", {kYarn, kHope, kHopePartial}, true},
          {"rope-layout", rotations, false},
          {"rope-dims", rotations, false},
          {"rope-periods", {kHope}, false},
          {"rope-ratio", {kHopePartial}, false}};
}

void check_meanings(const OptionValues& values, PositionKind kind) {
  for (const Meaning& meaning : meanings()) {
    const OptionValue* const given = find_value(values, meaning.option);
    const bool belongs = std::find(meaning.kinds.begin(), meaning.kinds.end(), kind) != meaning.kinds.end();
    if (given != nullptr && !belongs) {
      fail_bad_input(fmt::format("{} = {} has no meaning with --rope {}", given->origin, given->text, name_of(kind)));
    }
    if (given == nullptr && belongs && meaning.needed) {
      fail_bad_input(
          fmt::format("{} = {} needs --{}", find_value(values, "rope")->origin, name_of(kind), meaning.option));
    }
  }
}

void check_input(const OptionValues& values, PositionKind kind) {
  if (kind == PositionKind::kNone) return;
  const OptionValue* const rope = find_value(values, "rope");
  if (kind == PositionKind::kAlibi) {
    fail_bad_input(fmt::format("{} = alibi is a bias of logits and no rotation: ask for it by --alibi", rope->origin));
  }
  if (find_value(values, "planted") == nullptr) return;
  fail_bad_input(fmt::format("{} = {} does not go with --planted: its needles are found without positions",
                             rope->origin, rope->text));
}

}  // namespace

OptionGroup position_options() {
  const PositionEncoding defaults;
  OptionGroup group("Positions (for input whose q, k and landmark_q have none yet)");
  group
      .add("rope", "NAME",
           "rotate by the tensor `positions`, else by the place in the document: rope, pi, ntk, yarn, hope, "
           "hope-partial or xpos (default: none, the input has its positions)")
      .add("rope-theta", "X", fmt::format("base of the frequencies (default: {})", defaults.theta))
      .add("rope-factor", "X", "how many times the trained length: pi, ntk, yarn; yarn also raises the scale")
      .add("rope-original", "TOKENS", "the trained length: yarn, hope, hope-partial")
      .add("rope-layout", "NAME",
           fmt::format("elements of a pair: half (j and j + dims/2) or interleaved (2j and 2j + 1) (default: {})",
                       name_of(defaults.layout)))
      .add("rope-dims", "N", "first elements of a head that are rotated (default: all)")
      .add("rope-periods", "X",
           fmt::format("hope: turns within the trained length that a pair needs to be rotated (default: {})",
                       defaults.period_multiplier))
      .add("rope-ratio", "X",
           fmt::format("hope-partial: share of the pairs that are rotated (default: {})", defaults.kept_ratio));
  return group;
}

PositionEncoding read_position_encoding(const OptionValues& values) {
  PositionEncoding encoding;
  encoding.kind = read_choice<PositionKind>(values, "rope", kKinds, [](auto kind) {
                    return name_of(kind);
                  }).value_or(encoding.kind);
  check_input(values, encoding.kind);
  check_meanings(values, encoding.kind);
  encoding.theta = read_positive(values, "rope-theta", kMaxNumber).value_or(encoding.theta);
  encoding.factor = read_positive(values, "rope-factor", kMaxNumber).value_or(encoding.factor);
  encoding.original_length =
      read_count(values, "rope-original", 1, kernels::kMaxPosition).value_or(encoding.original_length);
  encoding.layout = read_choice<PairLayout>(values, "rope-layout", kLayouts, [](auto layout) {
                      return name_of(layout);
                    }).value_or(encoding.layout);
  encoding.rotary_dim = read_count(values, "rope-dims", 2, kMaxHeadDim).value_or(encoding.rotary_dim);
  encoding.period_multiplier = read_positive(values, "rope-periods", kMaxNumber).value_or(encoding.period_multiplier);
  encoding.kept_ratio = read_positive(values, "rope-ratio", 1.0).value_or(encoding.kept_ratio);
  encoding.validate(kMaxHeadDim);  // the head's own limits are checked where the input is known
  return encoding;
}

}  // namespace ringmark::cluster
