#include "cluster/planning/expected_fetch.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "cluster/planning/window_runs.h"
#include "runtime/fetch_plan.h"
#include "runtime/planted_needles.h"

namespace ringmark::cluster {
namespace {

using partition::SequenceGrid;

// Consecutive rows of one chunk that choose out of the same chunks.
struct Run {
  Range<TokenId> rows;
  Range<ChunkId> eligible;
  std::int64_t first_row = 0;  // of the shard
  bool follows = false;        // the run before it ends where this one begins
  double needle_queries = 0;   // rows that ask for a needle
};

// Chunks with long landmarks are near the top for many directions. With a popularity that is Gamma distributed, of mean
// 1 and this shape, directions that are independent leave a chunk out (1 + expected hits / shape)^-shape of the time.
// Fitted to planted layers of fresh directions; the topics of a few recurring ones are exchangeable without it.
constexpr double kPopularityShape = 1.5;

// Share of the other needles' chunks that a query chooses. Its products with their keys have this deviation, and have
// to pass what ordinary chunks reach, the log of their keys and about 1 more.
double share_of_needles(const AttentionProblem& problem, double deviation) {
  const double passed = (std::log(static_cast<double>(problem.chunk_size)) + 1.0) / deviation;
  return 0.5 * std::erfc(passed / std::sqrt(2.0));
}

// Logit of a needle and its question, both equally long; other queries and keys have logits of deviation 1
// (runtime/planted_layer.cpp).
constexpr double kNeedleLogit = 32.0;
double share_of_needles_for_questions(const AttentionProblem& problem) {
  return share_of_needles(problem, kNeedleLogit / std::sqrt(static_cast<double>(problem.head_dim)));
}
double share_of_needles_for_others(const AttentionProblem& problem) {
  return share_of_needles(problem, std::sqrt(kNeedleLogit / std::sqrt(static_cast<double>(problem.head_dim))));
}

// What a Poisson number of this mean leaves of `places`, on average, by its normal approximation.
double left_of(double places, double mean) {
  if (mean <= 0.0) return places;
  const double deviation = std::sqrt(mean), distance = (places - mean) / deviation;
  const double density = std::exp(-0.5 * distance * distance) / std::sqrt(2.0 * std::numbers::pi);
  return deviation * (distance * 0.5 * std::erfc(-distance / std::sqrt(2.0)) + density);
}

double popular_miss(double hits) { return std::pow(1.0 + hits / kPopularityShape, -kPopularityShape); }

// A landmark leans towards the direction in which it was made, so that topics share fewer chunks than independent ones
// would, and more than none: halfway.
double topics_miss(double one, double topics) {
  return 0.5 * (std::pow(1.0 - one, topics) + std::max(0.0, 1.0 - topics * one));
}

// P(a chunk is not chosen by this run and the later ones of a document), by run, for a chunk that became eligible with
// the run.
class Misses {
 public:
  // Chunks without a needle that a query chooses: an ordinary one, and one that asks for a needle. `lists` of chosen
  // chunks each kv head has for a row.
  Misses(const QueryModel& model, double topk, double of_query, double of_question, double lists)
      : model_(model), topk_(topk), of_query_(of_query), of_question_(of_question), lists_(lists) {}

  std::vector<double> of(const std::vector<Run>& runs) const {
    std::vector<double> misses(runs.size());
    const auto topics = static_cast<double>(model_.topics);
    // Of the runs behind: P(one topic, not asked for just before, chooses the chunk), and the expected hits by
    // directions that do not return.
    double topic = 0.0, hits = 0.0;
    for (std::size_t r = runs.size(); r-- > 0;) {
      const Run& run = runs[r];
      const auto eligible = static_cast<double>(run.eligible.size()), rows = static_cast<double>(run.rows.size());
      const double share = eligible <= topk_ ? 1.0 : std::min(1.0, of_query_ / eligible);
      hits += run.needle_queries * std::min(1.0, of_question_ / eligible);
      double miss = 0.0;  // somebody asks, and with share 1 for everything
      if (model_.topics == 0) {
        // The direction in which the run begins asks too.
        const double turned = hits + (1.0 - model_.agreement) * rows * share;
        if (share < 1.0) miss = popular_miss(turned + share);
        hits = turned + (run.follows ? 0.0 : share);
      } else {
        const double unasked = std::pow(1.0 - (1.0 - model_.agreement) / topics, rows);
        const double asked_first = 1.0 - (1.0 - 1.0 / topics) * unasked;
        const double one = asked_first * share + (1.0 - asked_first) * topic;
        if (share < 1.0) miss = popular_miss(hits) * topics_miss(one, topics);
        const double asked = run.follows ? 1.0 - unasked : asked_first;
        topic = asked * share + (1.0 - asked) * topic;
      }
      misses[r] = std::pow(miss, lists_);
    }
    return misses;
  }

 private:
  const QueryModel& model_;
  double topk_;
  double of_query_;
  double of_question_;
  double lists_;
};

class Expectation {
 public:
  Expectation(const AttentionProblem& problem, const AttentionPolicy& policy, const SequenceGrid& grid,
              const partition::Layout& layout, RankId rank, const QueryModel& model)
      : problem_(problem), policy_(policy), grid_(grid), layout_(layout), rank_(rank), model_(model) {
    const auto ranks = static_cast<std::size_t>(layout.ranks());
    expected_ = {std::vector<double>(ranks), std::vector<double>(ranks), std::vector<double>(ranks)};
  }

  ExpectedFetch run() {
    count_window();
    if (!policy_.selects()) return std::move(expected_);
    // As a planted layer has them: in one document.
    if (problem_.cu_seqlens.empty()) place_needles();
    const std::vector<ChunkId>& chunks = layout_.chunks_of(rank_);
    const std::int64_t rows_of_wave = runtime::rows_of_wave(layout_.token_count(rank_));
    std::vector<Run> runs;
    for (std::size_t at = 0; at < chunks.size(); ++at) {
      add_runs(chunks[at], runs);
      const bool last = at + 1 == chunks.size() ||
                        grid_.document_of(chunks[at + 1]).chunks.begin != grid_.document_of(chunks[at]).chunks.begin;
      if (!last) continue;
      if (!runs.empty()) count_blocks(runs);
      for (std::size_t begin = 0, end = 0; begin < runs.size(); begin = end) {
        const auto wave = [&](const Run& run) { return run.first_row / rows_of_wave; };
        while (end < runs.size() && wave(runs[end]) == wave(runs[begin])) ++end;
        count_records(
            {runs.begin() + static_cast<std::ptrdiff_t>(begin), runs.begin() + static_cast<std::ptrdiff_t>(end)});
      }
      runs.clear();
    }
    return std::move(expected_);
  }

 private:
  double& at(std::vector<double>& by_owner, ChunkId chunk) const {
    return by_owner[static_cast<std::size_t>(layout_.owner(chunk).value())];
  }
  bool is_remote(ChunkId chunk) const { return layout_.owner(chunk) != rank_; }

  void place_needles() {
    needles_ = runtime::place_needles(problem_, policy_, model_.needles, [](auto) { return std::uint64_t{0}; });
    for (const auto* at : {&needles_.question_at, &needles_.landmark_at}) {
      for (const auto& [token, needle] : *at) needle_queries_.push_back(token);
    }
    std::sort(needle_queries_.begin(), needle_queries_.end());
  }

  // The first row of a chunk has the earliest window, the last one most of the sinks.
  void count_window() {
    std::vector<bool> counted(static_cast<std::size_t>(grid_.chunk_count()));
    const auto add = [&](ChunkId begin, ChunkId end) {
      for (ChunkId chunk = begin; chunk < end; ++chunk) {
        const auto index = static_cast<std::size_t>(chunk.value());
        if (counted[index] || !is_remote(chunk)) continue;
        counted[index] = true;
        at(expected_.window_blocks, chunk) += static_cast<double>(problem_.kv_heads);
      }
    };
    for (const ChunkId chunk : layout_.chunks_of(rank_)) {
      if (!layout_.has_rows(chunk)) continue;
      const Range<TokenId> rows = grid_.tokens_of(chunk);
      add(grid_.chunk_of(grid_.window_of(rows.begin).begin), chunk);
      const Range<TokenId> sinks = grid_.sinks_of(rows.end - 1);
      if (!sinks.empty()) add(grid_.chunk_of(sinks.begin), grid_.chunk_of(sinks.end - 1) + 1);
    }
  }

  void add_runs(ChunkId chunk, std::vector<Run>& runs) const {
    if (!layout_.has_rows(chunk)) return;
    const TokenId first = grid_.tokens_of(chunk).begin;
    for (const Range<TokenId>& rows : window_runs(grid_, chunk)) {
      const Range<ChunkId> eligible = grid_.eligible(rows.begin);
      if (eligible.empty()) continue;
      const bool follows = !runs.empty() && runs.back().rows.end == rows.begin;
      runs.push_back({rows, eligible, layout_.first_row(chunk) + (rows.begin - first), follows,
                      static_cast<double>(needle_queries_in(rows))});
    }
  }

  std::ptrdiff_t needle_queries_in(Range<TokenId> rows) const {
    const auto begin = std::lower_bound(needle_queries_.begin(), needle_queries_.end(), rows.begin.value());
    return std::lower_bound(begin, needle_queries_.end(), rows.end.value()) - begin;
  }

  void count_blocks(const std::vector<Run>& runs) {
    const auto kv_heads = static_cast<double>(problem_.kv_heads);
    for_each_miss(runs,
                  [&](ChunkId chunk, double miss) { at(expected_.chosen_blocks, chunk) += kv_heads * (1.0 - miss); });
  }

  void count_records(const std::vector<Run>& runs) {
    const double choosers = policy_.choice == Choice::kAll ? 1.0 : static_cast<double>(problem_.kv_heads);
    for_each_miss(runs, [&](ChunkId chunk, double miss) {
      at(expected_.chosen_records, chunk) += 1.0 - std::pow(miss, choosers);
    });
  }

  // Calls visit(chunk, P(a kv head does not choose it in these runs)) for other ranks' chunks.
  template <class Visit>
  void for_each_miss(const std::vector<Run>& runs, Visit visit) const {
    const double lists = policy_.choice == Choice::kHead ? static_cast<double>(problem_.group()) : 1.0;
    const double found = share_of_needles_for_questions(problem_);
    const auto topk = static_cast<double>(policy_.topk), needles = static_cast<double>(needles_.count());
    const double of_query = left_of(topk, share_of_needles_for_others(problem_) * needles);
    const double of_question = left_of(topk - 1.0, found * needles);
    const std::vector<double> misses = Misses(model_, topk, of_query, of_question, lists).of(runs);
    const NeedleChunks needle_chunks = needle_chunks_of(runs);
    ChunkId chunk = runs.front().eligible.begin;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      for (; chunk < runs[r].eligible.end; ++chunk) {
        if (!is_remote(chunk)) continue;
        double miss = misses[r];
        if (const auto needle = needle_chunks.find(chunk.value()); needle != needle_chunks.end()) {
          miss = needle->second.asked_here ? 0.0 : miss * std::pow(1.0 - found, needle->second.queries_behind);
        }
        visit(chunk, miss);
      }
    }
  }

  struct NeedleChunk {
    bool asked_here = false;    // a row of this rank asks for it
    double queries_behind = 0;  // rows of this rank that ask for other needles and may choose it
  };
  using NeedleChunks = std::unordered_map<std::int64_t, NeedleChunk>;

  NeedleChunks needle_chunks_of(const std::vector<Run>& runs) const {
    NeedleChunks chunks;
    std::unordered_set<std::int64_t> asked;
    for (const auto& [token, needle] : needles_.question_at) {
      const bool here = layout_.owner(grid_.chunk_of(TokenId(token))) == rank_;
      if (here && token >= runs.front().rows.begin.value() && token < runs.back().rows.end.value())
        asked.insert(needle);
    }
    for (const auto& [token, needle] : needles_.key_at) {
      const ChunkId chunk = grid_.chunk_of(TokenId(token));
      NeedleChunk& of = chunks[chunk.value()];
      of.asked_here = asked.contains(needle);
      for (const Run& run : runs) of.queries_behind += run.eligible.contains(chunk) ? run.needle_queries : 0.0;
    }
    return chunks;
  }

  const AttentionProblem& problem_;
  const AttentionPolicy& policy_;
  const SequenceGrid& grid_;
  const partition::Layout& layout_;
  RankId rank_;
  const QueryModel& model_;
  runtime::PlantedNeedles needles_;
  std::vector<std::int64_t> needle_queries_;  // tokens, ascending
  ExpectedFetch expected_;
};

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

}  // namespace

double ExpectedFetch::window() const { return sum(window_blocks); }
double ExpectedFetch::chosen() const { return sum(chosen_blocks); }
double ExpectedFetch::records() const { return sum(chosen_records); }

double expected_union_ratio(const QueryModel& model, std::int64_t tile, double share) {
  if (share >= 1.0) return 1.0;
  const bool endless = share <= 0.0 || model.union_measured;
  double directions = 1.0 + static_cast<double>(tile - 1) * (1.0 - model.agreement);
  if (model.topics == 0) {
    return endless ? directions : (1.0 - (1.0 - share) * popular_miss((directions - 1.0) * share)) / share;
  }
  const auto topics = static_cast<double>(model.topics);
  directions = topics * (1.0 - std::pow(1.0 - 1.0 / topics, directions));
  return endless ? directions : (1.0 - topics_miss(share, directions)) / share;
}

QueryModel model_of_union_ratio(double ratio) {
  constexpr double kTile = 32;
  QueryModel model;
  model.topics = 0;
  model.needles = 0;
  model.union_measured = true;
  model.agreement = std::clamp(1.0 - (ratio - 1.0) / (kTile - 1.0), 0.0, 1.0);
  return model;
}

ExpectedFetch expected_fetch(const AttentionProblem& problem, const AttentionPolicy& policy, const SequenceGrid& grid,
                             const partition::Layout& layout, RankId rank, const QueryModel& model) {
  return Expectation(problem, policy, grid, layout, rank, model).run();
}

}  // namespace ringmark::cluster
