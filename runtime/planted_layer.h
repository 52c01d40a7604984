// A synthetic layer that every rank makes for itself, row by row from (seed, token), so that no rank ever holds all and
// the input does not depend on the rank count.
//
// Keys and values are Gaussian. Each of `needles` chunks, at even depths, holds one key that alone answers a query
// direction; its value is a code of +-1. The last ordinary tokens ask for the needles, one each. Every other query
// equals its neighbour's with probability `agreement`; where it does not, it turns to one of `topics` recurring
// directions (0: always a fresh one). Chunks carry landmark slots.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "core/problem.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"
#include "runtime/layer_shard.h"
#include "runtime/planted_needles.h"

namespace ringmark::runtime {

struct PlantedOptions {
  std::int64_t needles = 64;
  double agreement = 0.98;
  std::int64_t topics = 8;
  std::uint64_t seed = 1;
};

struct NeedleCount {
  std::int64_t planted = 0;
  std::int64_t recovered = 0;
};

class PlantedLayer {
 public:
  // One document; both arguments validated. Plants fewer needles when fewer chunks can be chosen from the tail.
  PlantedLayer(const AttentionProblem& problem, const AttentionPolicy& policy, const PlantedOptions& options);

  LayerShard make_shard(const partition::Layout& layout, RankId rank, int threads) const;

  // A gate in (0, 1) a token, from (seed, token); those that ask for a needle have more than 0.75, as if they had
  // learnt that they need the whole sequence.
  std::vector<float> gates(std::span<const TokenId> tokens) const;

  // Collective. A needle is recovered when every head's output of its question is closest to its own code, with a
  // cosine above 0.7.
  NeedleCount count_recovered(comm::Communicator& communicator, std::span<const TokenId> tokens,
                              std::span<const float> out) const;

 private:
  void fill_query(TokenId token, std::vector<float>& row) const;
  void fill_key_value(TokenId token, std::vector<float>& keys, std::vector<float>& values) const;
  std::int64_t direction_of(TokenId token) const;
  bool recovered(std::int64_t needle, const float* out) const;
  std::vector<float> question(std::int64_t needle) const;
  std::vector<float> code(std::int64_t needle) const;

  AttentionProblem problem_;
  PlantedOptions options_;
  PlantedNeedles needles_;
};

}  // namespace ringmark::runtime
