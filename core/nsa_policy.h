// Native sparse attention (arXiv 2502.11089): every query reads pooled keys of all chunks before it, the keys of a few
// chosen chunks and a window, each in a softmax of its own, and adds the three by gates. Semantics: docs/numerics.md.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace ringmark {

struct NsaPolicy {
  // The chunks that every query takes: the first of its document, its own and the one before.
  static constexpr std::int64_t kForced = 3;

  std::int64_t window = 512;  // W: keys [max(0, i-W+1), i]
  std::int64_t topk = 16;     // chunks a query and kv head, the forced ones among them

  // The window branch as grids know it.
  AttentionPolicy window_policy() const;
  // The chosen chunks as files and reports know them; how the choice is made is this policy's own.
  AttentionPolicy selection_policy() const;
  // Throws Error(kBadInput) naming field, value and limit; for ALiBi and sink logits, too.
  void validate(const AttentionProblem& problem) const;
};

}  // namespace ringmark
