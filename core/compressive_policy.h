// The compressive memory (Rae et al., "Compressive Transformers for Long-Range Sequence Modelling"): keys that fall out
// of the memory of a segment live on as means over groups of neighbours. Semantics: docs/numerics.md.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace ringmark {

struct CompressivePolicy {
  std::int64_t segment = 512;  // L: queries of a segment share a memory; a multiple of rate
  std::int64_t memory = 512;   // M: exact keys before the segment; a multiple of rate
  std::int64_t slots = 512;    // C: groups before those, the latest
  std::int64_t rate = 4;       // c: tokens of a group; divides the chunk size

  // The exact keys [max(0, floor(o/L) L - M), o] as grids know them.
  AttentionPolicy exact_policy() const;
  // Throws Error(kBadInput) naming field, value and limit; for ALiBi, which pooled keys cannot have, too.
  void validate(const AttentionProblem& problem) const;
};

}  // namespace ringmark
