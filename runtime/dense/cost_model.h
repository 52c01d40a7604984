// What each strategy is expected to cost, and the choice between them. Pure arithmetic: no rank measures or sends here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/problem.h"
#include "runtime/dense/strategy.h"

namespace ringmark::runtime::dense {

// New tokens attend to each other and to cached ones that stand spread over the ranks as well.
struct Work {
  int ranks = 1;
  std::int64_t new_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 64;
  std::int64_t element_bytes = 2;
};

struct Rates {
  double bandwidth = 10e9;  // bytes a second that a rank receives
  double latency = 20e-6;   // of an exchange
  double flops = 1e11;      // of attention, a rank
  std::int64_t fetch_budget = std::int64_t{64} << 20;
};

struct Cost {
  Strategy strategy = Strategy::kRing;
  int ulysses_ranks = 1;
  std::int64_t bytes = 0;  // received by a rank; what causality saves is not counted
  double attend = 0.0;     // seconds of the busiest rank
  double exposed = 0.0;    // seconds of communication that no attention hides

  double seconds() const { return attend + exposed; }
};

// Of all strategies but kAuto.
Cost cost_of(Strategy strategy, int ulysses_ranks, const Work& work, const Rates& rates);

struct Choice {
  Strategy strategy = Strategy::kRing;
  int ulysses_ranks = 1;  // 1 for ring, pass-q and all-gather; all for ulysses
  std::string why;        // one line
};

// `ulysses_ranks` 0: as usual_ulysses_ranks says. Throws Error(kBadInput) for one that does not divide the ranks.
Choice choose(Strategy asked, int ulysses_ranks, const Work& work, const Rates& rates);

}  // namespace ringmark::runtime::dense
