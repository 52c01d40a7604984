// Where the needles of a planted layer stand: the part of it that does not depend on how its numbers are drawn.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>

#include "core/problem.h"

namespace ringmark::runtime {

struct PlantedNeedles {
  using NeedleAt = std::unordered_map<std::int64_t, std::int64_t>;  // token to needle

  NeedleAt question_at;  // tail tokens that ask
  NeedleAt landmark_at;  // landmark slots of needle chunks
  NeedleAt key_at;       // the needles' keys

  std::int64_t count() const { return static_cast<std::int64_t>(question_at.size()); }
};

// Chunks at even depths among those that every question may choose; the last ordinary tokens ask, the last one for
// needle 0. At most `wanted` needles, fewer when fewer chunks can be chosen from the tail. draw(needle): random bits
// that pick the key inside its chunk. Throws Error(kBadInput) for packed documents.
PlantedNeedles place_needles(const AttentionProblem& problem, const AttentionPolicy& policy, std::int64_t wanted,
                             const std::function<std::uint64_t(std::int64_t needle)>& draw);

}  // namespace ringmark::runtime
