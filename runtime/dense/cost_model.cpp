#include "runtime/dense/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/error.h"
#include "runtime/dense/head_shares.h"

namespace ringmark::runtime::dense {
namespace {

// Bytes of a token's row.
struct RowBytes {
  explicit RowBytes(const Work& w)
      : queries(w.heads * w.head_dim * w.element_bytes),
        kv_head(2 * w.head_dim * w.element_bytes),
        partials(w.heads * (w.head_dim + 1) * static_cast<std::int64_t>(sizeof(float))) {}
  std::int64_t queries;
  std::int64_t kv_head;  // keys and values of one head
  std::int64_t partials;
};

double even_attend_seconds(const Work& w, const Rates& rates) {
  const auto fresh = static_cast<double>(w.new_tokens), cached = static_cast<double>(w.cached_tokens);
  const double pairs = fresh * cached + fresh * fresh / 2;
  return 4.0 * pairs * static_cast<double>(w.heads * w.head_dim) / w.ranks / rates.flops;
}

double transfer_seconds(double bytes, const Rates& rates) { return bytes / rates.bandwidth; }

// The part of (n - 1) exchanges of equal size that n equal pieces of attention do not hide.
double exposed_steps(int n, double bytes_of_step, double attend, const Rates& rates) {
  const double step = rates.latency + transfer_seconds(bytes_of_step, rates);
  return (n - 1) * std::max(0.0, step - attend / n);
}

// Heads are exchanged in groups of u ranks, keys travel round rings of ranks / u: ring is u = 1, ulysses u = ranks.
Cost cost_of_ring_ulysses(Strategy strategy, int u, const Work& w, const Rates& rates) {
  const RowBytes row(w);
  const int ring = w.ranks / u;
  AttentionProblem heads;
  heads.heads = w.heads;
  heads.kv_heads = w.kv_heads;
  std::int64_t most_heads = 0, most_kv_heads = 0;
  for (int index = 0; index < u; ++index) {
    const HeadShare share = head_share(heads, index, u);
    most_heads = std::max(most_heads, share.heads.size());
    most_kv_heads = std::max(most_kv_heads, share.kv_heads.size());
  }
  const double keys = static_cast<double>(w.new_tokens + w.cached_tokens) / ring;  // of a place of the ring
  const double kv_bytes = keys * static_cast<double>(row.kv_head * most_kv_heads);
  const double others = static_cast<double>(u - 1) / u;
  const double rows = static_cast<double>(w.new_tokens) / w.ranks;
  const double exchanged = others * (kv_bytes + rows * static_cast<double>(row.queries + row.partials));
  Cost cost{strategy, u};
  cost.bytes = std::llround(exchanged + (ring - 1) * kv_bytes);
  cost.attend = even_attend_seconds(w, rates) * static_cast<double>(most_heads * u) / static_cast<double>(w.heads);
  cost.exposed = exposed_steps(ring, kv_bytes, cost.attend, rates);
  if (u > 1) cost.exposed += 2 * rates.latency + transfer_seconds(exchanged, rates);
  return cost;
}

Cost cost_of_pass_q(const Work& w, const Rates& rates) {
  const RowBytes row(w);
  const double rows = static_cast<double>(w.new_tokens) / w.ranks;
  const double step = rows * static_cast<double>(row.queries + row.partials);
  Cost cost{Strategy::kPassQ, 1};
  cost.bytes = std::llround((w.ranks - 1) * step);
  cost.attend = even_attend_seconds(w, rates);
  cost.exposed = exposed_steps(w.ranks, step, cost.attend, rates);
  // The last partials return when nothing is left to attend.
  if (w.ranks > 1) cost.exposed += rates.latency + transfer_seconds(rows * static_cast<double>(row.partials), rates);
  return cost;
}

// Nothing hides the first piece; each of the others comes while one is attended.
Cost cost_of_all_gather(const Work& w, const Rates& rates) {
  const RowBytes row(w);
  const double keys = static_cast<double>(w.new_tokens + w.cached_tokens) / w.ranks;
  const double bytes = (w.ranks - 1) * keys * static_cast<double>(row.kv_head * w.kv_heads);
  Cost cost{Strategy::kAllGather, 1};
  cost.bytes = std::llround(bytes);
  cost.attend = even_attend_seconds(w, rates);
  if (w.ranks == 1) return cost;
  const double pieces = std::max(1.0, std::ceil(bytes / (static_cast<double>(rates.fetch_budget) / 2)));
  const double piece = rates.latency + transfer_seconds(bytes / pieces, rates);
  cost.exposed = piece + (pieces - 1) * std::max(0.0, piece - cost.attend / pieces);
  return cost;
}

int group_of(Strategy strategy, int asked, const Work& work) {
  if (strategy == Strategy::kUlysses) return work.ranks;
  if (strategy != Strategy::kRingUlysses) return 1;
  return asked > 0 ? asked : usual_ulysses_ranks(work.ranks, work.kv_heads);
}

std::string label(const Cost& cost, int ranks) {
  if (cost.strategy != Strategy::kRingUlysses) return std::string(name_of(cost.strategy));
  return fmt::format("{} {} x {}", name_of(cost.strategy), cost.ulysses_ranks, ranks / cost.ulysses_ranks);
}

}  // namespace

Cost cost_of(Strategy strategy, int ulysses_ranks, const Work& work, const Rates& rates) {
  switch (strategy) {
    case Strategy::kPassQ: return cost_of_pass_q(work, rates);
    case Strategy::kAllGather: return cost_of_all_gather(work, rates);
    default: return cost_of_ring_ulysses(strategy, ulysses_ranks, work, rates);
  }
}

Choice choose(Strategy asked, int ulysses_ranks, const Work& work, const Rates& rates) {
  if (ulysses_ranks > 0 && work.ranks % ulysses_ranks != 0) {
    fail_bad_input(fmt::format("ulysses-ranks = {} does not divide the {} rank{} of the job", ulysses_ranks, work.ranks,
                               work.ranks == 1 ? "" : "s"));
  }
  const auto cost = [&](Strategy strategy) {
    return cost_of(strategy, group_of(strategy, ulysses_ranks, work), work, rates);
  };
  if (asked != Strategy::kAuto) {
    const Cost forced = cost(asked);
    return {asked, forced.ulysses_ranks, label(forced, work.ranks) + ", asked for"};
  }
  if (work.ranks == 1) return {Strategy::kRing, 1, "ring, of one rank: nothing moves"};
  std::vector<Cost> costs;
  for (const Strategy strategy : kStrategies) {
    if (strategy != Strategy::kAuto) costs.push_back(cost(strategy));
  }
  std::stable_sort(costs.begin(), costs.end(), [](const Cost& a, const Cost& b) {
    return std::tuple(a.seconds(), a.bytes) < std::tuple(b.seconds(), b.bytes);
  });
  std::string why = fmt::format("{} is expected to be quickest:", label(costs[0], work.ranks));
  for (const Cost& c : costs) {
    why += fmt::format("{} {} {:.3g} s", c.strategy == costs[0].strategy ? "" : ",", label(c, work.ranks), c.seconds());
  }
  return {costs[0].strategy, costs[0].ulysses_ranks, why};
}

}  // namespace ringmark::runtime::dense
