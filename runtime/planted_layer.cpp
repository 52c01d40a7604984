#include "runtime/planted_layer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "core/error.h"
#include "runtime/counter_random.h"

namespace ringmark::runtime {
namespace {

enum Stream : std::uint64_t { kTurn = 1, kTopic, kQuery, kKey, kValue, kQuestion, kCode, kPlace, kGate };

// Box-Muller, two values a draw.
void fill_gaussian(std::uint64_t seed, Stream stream, std::int64_t index, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; i += 2) {
    const std::uint64_t bits = random_bits(seed, stream, index, i);
    const float radius = std::sqrt(-2.0f * std::log((static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f));
    const float angle = 2.0f * std::numbers::pi_v<float> * static_cast<float>(bits & 0xFFFFFFu) * 0x1p-24f;
    out[i] = radius * std::cos(angle);
    if (i + 1 < count) out[i + 1] = radius * std::sin(angle);
  }
}

// Logit of a question and its needle: far above ln(keys) of any sequence.
constexpr float kNeedleLogit = 32.0f;

}  // namespace

PlantedLayer::PlantedLayer(const AttentionProblem& problem, const AttentionPolicy& policy,
                           const PlantedOptions& options)
    : problem_(problem),
      options_(options),
      needles_(place_needles(problem, policy, options.needles,
                             [&](std::int64_t needle) { return random_bits(options.seed, kPlace, needle, 0); })) {}

std::vector<float> PlantedLayer::question(std::int64_t needle) const {
  std::vector<float> direction(static_cast<std::size_t>(problem_.head_dim));
  fill_gaussian(options_.seed, kQuestion, needle, problem_.head_dim, direction.data());
  const float norm = std::sqrt(std::inner_product(direction.begin(), direction.end(), direction.begin(), 0.0f));
  // Question and key have the same length l with scale * l * l = kNeedleLogit.
  const float length = std::sqrt(kNeedleLogit / problem_.scale);
  for (float& x : direction) x *= length / norm;
  return direction;
}

std::vector<float> PlantedLayer::code(std::int64_t needle) const {
  std::vector<float> signs(static_cast<std::size_t>(problem_.head_dim));
  for (std::size_t x = 0; x < signs.size(); ++x) {
    signs[x] = random_bits(options_.seed, kCode, needle, static_cast<std::int64_t>(x)) & 1u ? 1.0f : -1.0f;
  }
  return signs;
}

// Tokens between two turns share a direction; a turn is found by looking back, about 1 / (1 - agreement) tokens.
std::int64_t PlantedLayer::direction_of(TokenId token) const {
  while (token > TokenId(0) &&
         unit_interval(random_bits(options_.seed, kTurn, token.value(), 0)) < options_.agreement) {
    token = token - 1;
  }
  if (options_.topics == 0) return token.value();
  return static_cast<std::int64_t>(random_bits(options_.seed, kTopic, token.value(), 0) %
                                   static_cast<std::uint64_t>(options_.topics));
}

void PlantedLayer::fill_query(TokenId token, std::vector<float>& row) const {
  for (const PlantedNeedles::NeedleAt* at : {&needles_.question_at, &needles_.landmark_at}) {
    const auto found = at->find(token.value());
    if (found == at->end()) continue;
    const std::vector<float> direction = question(found->second);
    for (std::int64_t head = 0; head < problem_.heads; ++head) {
      std::copy(direction.begin(), direction.end(), row.begin() + head * problem_.head_dim);
    }
    return;
  }
  fill_gaussian(options_.seed, kQuery, direction_of(token), static_cast<std::int64_t>(row.size()), row.data());
}

void PlantedLayer::fill_key_value(TokenId token, std::vector<float>& keys, std::vector<float>& values) const {
  const auto found = needles_.key_at.find(token.value());
  if (found == needles_.key_at.end()) {
    fill_gaussian(options_.seed, kKey, token.value(), static_cast<std::int64_t>(keys.size()), keys.data());
    fill_gaussian(options_.seed, kValue, token.value(), static_cast<std::int64_t>(values.size()), values.data());
    return;
  }
  const std::vector<float> key = question(found->second), value = code(found->second);
  for (std::int64_t head = 0; head < problem_.kv_heads; ++head) {
    std::copy(key.begin(), key.end(), keys.begin() + head * problem_.head_dim);
    std::copy(value.begin(), value.end(), values.begin() + head * problem_.head_dim);
  }
}

LayerShard PlantedLayer::make_shard(const partition::Layout& layout, RankId rank, int threads) const {
  const std::vector<TokenId> tokens = layout.tokens_of(rank);
  const auto rows = static_cast<std::int64_t>(tokens.size());
  LayerShard shard(problem_, rows, false);
  const std::int64_t q_width = problem_.heads * problem_.head_dim;
  const std::int64_t kv_width = problem_.kv_heads * problem_.head_dim;
  const std::int64_t element = size_of(problem_.dtype);
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> query(static_cast<std::size_t>(q_width)), keys(static_cast<std::size_t>(kv_width)), values(keys);
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) {
      const TokenId token = tokens[static_cast<std::size_t>(row)];
      fill_query(token, query);
      fill_key_value(token, keys, values);
      narrow(query.data(), problem_.dtype, q_width, shard.q().data() + row * q_width * element);
      narrow(keys.data(), problem_.dtype, kv_width, shard.k().data() + row * kv_width * element);
      narrow(values.data(), problem_.dtype, kv_width, shard.v().data() + row * kv_width * element);
    }
  }
  return shard;
}

std::vector<float> PlantedLayer::gates(std::span<const TokenId> tokens) const {
  std::vector<float> gates;
  for (const TokenId token : tokens) {
    // 23 bits and a half are a float below 1.
    const auto draw = static_cast<float>(random_bits(options_.seed, kGate, token.value(), 0) >> 41);
    const float gate = (draw + 0.5f) * 0x1p-23f;
    gates.push_back(needles_.question_at.contains(token.value()) ? 0.75f + 0.25f * gate : gate);
  }
  return gates;
}

bool PlantedLayer::recovered(std::int64_t needle, const float* out) const {
  const auto needles = needles_.count();
  const float out_norm = std::sqrt(std::inner_product(out, out + problem_.head_dim, out, 0.0f));
  const float code_norm = std::sqrt(static_cast<float>(problem_.head_dim));
  std::int64_t closest = -1;
  float best = 0.7f;
  for (std::int64_t candidate = 0; candidate < needles; ++candidate) {
    const std::vector<float> signs = code(candidate);
    const float cosine = std::inner_product(signs.begin(), signs.end(), out, 0.0f) / (out_norm * code_norm);
    if (cosine > best) {
      best = cosine;
      closest = candidate;
    }
  }
  return closest == needle;
}

NeedleCount PlantedLayer::count_recovered(comm::Communicator& communicator, std::span<const TokenId> tokens,
                                          std::span<const float> out) const {
  std::int64_t found = 0;
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const auto question = needles_.question_at.find(tokens[row].value());
    if (question == needles_.question_at.end()) continue;
    bool all_heads = true;
    for (std::int64_t head = 0; head < problem_.heads; ++head) {
      const auto at = (static_cast<std::int64_t>(row) * problem_.heads + head) * problem_.head_dim;
      all_heads = all_heads && recovered(question->second, out.data() + at);
    }
    found += all_heads ? 1 : 0;
  }
  std::array<std::int64_t, 1> sum = {found};
  communicator.all_reduce_sum("count needles", sum);
  return {needles_.count(), sum[0]};
}

}  // namespace ringmark::runtime
