// Streaming top-K of a row: chunks that beat the threshold are appended, and now and then the buffer is cut back to
// about the K best, which raises the threshold. Part of score_tile.inl.

namespace {

// Probes placed by a model of the scores before plain bisection takes over.
constexpr int kGuesses = 8;
constexpr int kGroupVectors = kGroups / Simd::kLanes;

// A monotone map between floats and integers, for bisection that ends whatever the scores are.
std::int64_t order_of(float score) {
  std::int32_t bits;
  __builtin_memcpy(&bits, &score, sizeof bits);
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}

float score_at(std::int64_t order) {
  const auto narrow = static_cast<std::int32_t>(order);
  const std::int32_t bits = narrow < 0 ? narrow ^ 0x7FFFFFFF : narrow;
  float score;
  __builtin_memcpy(&score, &bits, sizeof score);
  return score;
}

// Raises the threshold to the least of at least topk group maxima; groups are merged as long as enough of them are
// left.
void raise_threshold(CandidateBuffer& best, std::int64_t topk) {
  Vector groups[kGroupVectors];
  for (int v = 0; v < kGroupVectors; ++v) groups[v] = Simd::load(best.group_best + v * Simd::kLanes);
  int left = kGroupVectors;
  for (; left > 1 && topk <= left / 2 * Simd::kLanes; left /= 2) {
    for (int v = 0; v < left / 2; ++v) groups[v] = Simd::max(groups[v], groups[v + left / 2]);
  }
  for (int v = 1; v < left; ++v) groups[0] = min(groups[0], groups[v]);
  const float least = min_of(groups[0]);
  if (least > best.threshold) best.threshold = least;
}

void append_candidates(CandidateBuffer& best, const float* scores, std::int64_t count, std::int32_t first) {
  const Vector threshold = Simd::set(best.threshold);
  std::int64_t held = best.held;
  for (std::int64_t i = 0; i < count; i += Simd::kLanes) {
    const Vector score = Simd::load(scores + i);
    const std::uint32_t chosen = lanes_at_least(score, threshold);
    Simd::store(best.scores + held, compress(chosen, score));
    Simd::store(reinterpret_cast<float*>(best.positions + held),
                compress(chosen, positions_from(first + static_cast<std::int32_t>(i))));
    held += __builtin_popcount(chosen);
  }
  best.held = held;
}

// Makes lanes past the last candidate compare as false: enough of them to fill the next two vectors.
void pad_candidates(CandidateBuffer& best) {
  Simd::store(best.scores + best.held, Simd::set(__builtin_nanf("")));
  Simd::store(best.scores + best.held + Simd::kLanes, Simd::set(__builtin_nanf("")));
}

std::int64_t count_above(const CandidateBuffer& best, float score) {
  const Vector bound = Simd::set(score);
  std::int64_t above = 0;
  for (std::int64_t i = 0; i < best.held; i += Simd::kLanes) {
    above += __builtin_popcount(Simd::bits(Simd::less(bound, Simd::load(best.scores + i))));
  }
  return above;
}

// Where to cut: all candidates above `score` stay, and the first `ties` of those that equal it.
struct Cut {
  float score;
  std::int64_t ties;
};

// How far the candidates above `bound` lie above it, together.
float excess_above(const CandidateBuffer& best, float bound) {
  const Vector low = Simd::set(bound);
  Vector sum = Simd::zero();
  for (std::int64_t i = 0; i < best.held; i += Simd::kLanes) {
    sum = Simd::add(sum, Simd::max(Simd::sub(Simd::load(best.scores + i), low), Simd::zero()));
  }
  return sum_of(sum);
}

// Keeps low < cut <= high while narrowing: at least topk candidates lie above low, fewer than topk above high.
struct Bracket {
  float low;
  float high;
  std::int64_t above_low;
};

// The score that `wanted` candidates would exceed if scores fell off exponentially above low, as the tail of nearly any
// distribution does; (h - w) / ((h + w) / 2) stands for ln(h / w).
float tail_guess(const CandidateBuffer& best, const Bracket& bracket, std::int64_t wanted) {
  const auto above = static_cast<float>(bracket.above_low);
  const auto target = static_cast<float>(wanted);
  return bracket.low + excess_above(best, bracket.low) / above * 2.0f * (above - target) / (above + target);
}

float next_probe(const CandidateBuffer& best, const Bracket& bracket, std::int64_t wanted, int step) {
  if (step < kGuesses) {
    const float guess = tail_guess(best, bracket, wanted);
    if (bracket.low < guess && guess < bracket.high) return guess;
  }
  return score_at(order_of(bracket.low) + (order_of(bracket.high) - order_of(bracket.low)) / 2);
}

// A cut that leaves topk..limit candidates; there are more than limit, all at or above the threshold.
Cut find_cut(const CandidateBuffer& best, std::int64_t topk, std::int64_t limit) {
  Bracket bracket{best.threshold, -kMinusInfinity, count_above(best, best.threshold)};
  if (bracket.above_low < topk) return {bracket.low, topk - bracket.above_low};
  for (int step = 0; bracket.above_low > limit; ++step) {
    const float probe = next_probe(best, bracket, (topk + limit) / 2, step);
    if (order_of(probe) == order_of(bracket.low)) return {bracket.high, topk - count_above(best, bracket.high)};
    const std::int64_t above = count_above(best, probe);
    if (above >= topk) {
      bracket.low = probe;
      bracket.above_low = above;
    } else {
      bracket.high = probe;
    }
  }
  return {bracket.low, 0};
}

// The lowest `count` set bits.
std::uint32_t first_bits(std::uint32_t bits, std::int64_t count) {
  std::uint32_t rest = bits;
  for (; count > 0 && rest != 0; --count) rest &= rest - 1;
  return bits ^ rest;
}

// Drops candidates that cannot be among the topk best until at most `limit` are left.
void cut_candidates(CandidateBuffer& best, std::int64_t topk, std::int64_t limit) {
  if (best.held <= limit) return;
  pad_candidates(best);
  const Cut cut = find_cut(best, topk, limit);
  const Vector bound = Simd::set(cut.score);
  std::int64_t ties = cut.ties;
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < best.held; i += Simd::kLanes) {
    const Vector score = Simd::load(best.scores + i);
    const Vector position = Simd::load(reinterpret_cast<const float*>(best.positions + i));
    std::uint32_t chosen = Simd::bits(Simd::less(bound, score));
    if (ties > 0) {
      const std::uint32_t tied = first_bits(equal_lanes(bound, score), ties);
      ties -= __builtin_popcount(tied);
      chosen |= tied;
    }
    Simd::store(best.scores + kept, compress(chosen, score));
    Simd::store(reinterpret_cast<float*>(best.positions + kept), compress(chosen, position));
    kept += __builtin_popcount(chosen);
  }
  best.held = kept;
  best.threshold = cut.score;
}

// How many candidates are higher than candidate `own`, or equal to it and at a lower position.
int rank_among_ties(const CandidateBuffer& best, std::int64_t own) {
  const Vector score = Simd::set(best.scores[own]);
  int better = 0;
  for (std::int64_t i = 0; i < best.held; i += Simd::kLanes) {
    const Vector other = Simd::load(best.scores + i);
    const std::int64_t lower = own - i;
    const std::uint32_t earlier = lower <= 0 ? 0u : lower >= Simd::kLanes ? ~0u : (1u << lower) - 1u;
    better += __builtin_popcount(Simd::bits(Simd::less(score, other)) | (equal_lanes(score, other) & earlier));
  }
  return better;
}

// Puts the number of every candidate at its place, the count of those that are higher. Returns the sum of the places.
template <int kVectors>
std::int64_t rank_few(const CandidateBuffer& best, std::int16_t* order) {
  Vector scores[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) scores[v] = Simd::load(best.scores + v * Simd::kLanes);
  std::int64_t ranks = 0;
  for (std::int64_t own = 0; own < best.held; ++own) {
    const Vector score = Simd::set(best.scores[own]);
    int higher = 0;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) higher += __builtin_popcount(Simd::bits(Simd::less(score, scores[v])));
    order[higher] = static_cast<std::int16_t>(own);
    ranks += higher;
  }
  return ranks;
}

std::int64_t rank_many(const CandidateBuffer& best, std::int16_t* order) {
  std::int64_t ranks = 0;
  for (std::int64_t own = 0; own < best.held; ++own) {
    const std::int64_t higher = count_above(best, best.scores[own]);
    order[higher] = static_cast<std::int16_t>(own);
    ranks += higher;
  }
  return ranks;
}

// Orders the candidates from the best to the worst.
void rank_candidates(CandidateBuffer& best, std::int16_t* order) {
  const std::int64_t held = best.held;
  pad_candidates(best);
  const std::int64_t ranks = held <= Simd::kLanes       ? rank_few<1>(best, order)
                             : held <= 2 * Simd::kLanes ? rank_few<2>(best, order)
                             : held <= 4 * Simd::kLanes ? rank_few<4>(best, order)
                                                        : rank_many(best, order);
  if (ranks == held * (held - 1) / 2) return;  // no two are equal
  for (std::int64_t own = 0; own < held; ++own) order[rank_among_ties(best, own)] = static_cast<std::int16_t>(own);
}

}  // namespace
