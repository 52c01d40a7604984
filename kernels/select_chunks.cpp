#include "kernels/select_chunks.h"

#include <algorithm>
#include <cmath>

namespace ringmark::kernels {
namespace {

// One head's list on one part, walked from its best candidate on. Ranks are fp64 differences of fp32 values, so that
// two scores of one head never swap places.
struct Walk {
  double rank;
  std::int32_t chunk;
  const Candidate* next;
  const Candidate* end;
  double normaliser;
};

bool worse(const Walk& a, const Walk& b) { return a.rank < b.rank || (a.rank == b.rank && a.chunk > b.chunk); }

// False at the end of the list.
bool step(Walk& walk) {
  if (walk.next == walk.end || walk.next->chunk < 0) return false;
  walk.rank = static_cast<double>(walk.next->score) - walk.normaliser;
  walk.chunk = walk.next->chunk;
  ++walk.next;
  return true;
}

double log_add_exp(double a, double b) {
  const double most = std::max(a, b);
  return std::isinf(most) ? most : most + std::log1p(std::exp(std::min(a, b) - most));
}

class GroupRank {
 public:
  GroupRank(std::span<const CandidateLists> parts, std::span<const float> lse_window)
      : parts_(parts), lse_window_(lse_window) {}

  void choose(std::int64_t row, std::int64_t first_head, std::int64_t group, std::span<std::int32_t> slots) {
    start(row, first_head, group);
    std::size_t used = 0;
    while (!walks_.empty() && used < slots.size()) {
      std::pop_heap(walks_.begin(), walks_.end(), worse);
      Walk& best = walks_.back();
      // The first time a chunk comes up it has its highest rank over the heads.
      const auto chosen = slots.first(used);
      if (std::find(chosen.begin(), chosen.end(), best.chunk) == chosen.end()) slots[used++] = best.chunk;
      if (step(best)) {
        std::push_heap(walks_.begin(), walks_.end(), worse);
      } else {
        walks_.pop_back();
      }
    }
    std::fill(slots.begin() + static_cast<std::ptrdiff_t>(used), slots.end(), -1);
    std::sort(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(used));
  }

 private:
  void start(std::int64_t row, std::int64_t first_head, std::int64_t group) {
    walks_.clear();
    for (std::int64_t head = first_head; head < first_head + group; ++head) {
      const double normaliser = group == 1 ? 0.0 : normaliser_of(row, head);
      for (const CandidateLists& part : parts_) {
        const std::span<const Candidate> list = part.list(row, head);
        Walk walk{0.0, -1, list.data(), list.data() + list.size(), normaliser};
        if (step(walk)) walks_.push_back(walk);
      }
    }
    std::make_heap(walks_.begin(), walks_.end(), worse);
  }

  double normaliser_of(std::int64_t row, std::int64_t head) const {
    LogSum all;
    for (const CandidateLists& part : parts_) all.add(part.sum(row, head));
    if (lse_window_.empty()) return all.value();
    return log_add_exp(lse_window_[static_cast<std::size_t>(row * parts_.front().heads + head)], all.value());
  }

  std::span<const CandidateLists> parts_;
  std::span<const float> lse_window_;
  std::vector<Walk> walks_;
};

std::uint64_t mix(std::uint64_t state, std::uint64_t value) {  // splitmix64 over a running state
  state += value + 0x9E3779B97F4A7C15ull;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
  return state ^ (state >> 31);
}

}  // namespace

std::span<const std::int32_t> Selection::chosen(std::int64_t row, std::int64_t chooser) const {
  const std::span<const std::int32_t> all = slots(row, chooser);
  std::size_t used = 0;
  while (used < all.size() && all[used] >= 0) ++used;
  return all.first(used);
}

void select_chunks(std::span<const CandidateLists> parts, std::span<const float> lse_window, std::int64_t first_row,
                   Selection& selection, int threads) {
  if (parts.empty() || selection.topk == 0) return;
  const std::int64_t rows = parts.front().rows;
  const std::int64_t group = parts.front().heads / selection.choosers;
#pragma omp parallel num_threads(threads)
  {
    GroupRank ranking(parts, lse_window);
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t chooser = 0; chooser < selection.choosers; ++chooser) {
        ranking.choose(row, chooser * group, group, selection.slots(first_row + row, chooser));
      }
    }
  }
}

std::uint64_t selection_digest(const Selection& selection, std::span<const TokenId> tokens) {
  std::uint64_t digest = 0;
  for (std::int64_t row = 0; row < selection.rows; ++row) {
    for (std::int64_t chooser = 0; chooser < selection.choosers; ++chooser) {
      std::uint64_t state = mix(static_cast<std::uint64_t>(tokens[static_cast<std::size_t>(row)].value()),
                                static_cast<std::uint64_t>(chooser));
      for (const std::int32_t chunk : selection.chosen(row, chooser)) {
        state = mix(state, static_cast<std::uint64_t>(chunk));
      }
      digest += state;
    }
  }
  return digest;
}

}  // namespace ringmark::kernels
