// A selection as a planted layer's queries make it (runtime/planted_layer.h), without its numbers: a query equals the
// one before with probability `agreement`, else it turns to one of `topics` directions; the scores of chunks for a
// direction and kv head are in random order. So the choice of a row is: the K best, by that order, of the chunks it may
// choose. From (seed, token) alone: it does not depend on the ranks.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "core/problem.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"
#include "runtime/fetch_plan.h"

namespace ringmark::cluster {

struct QueryTurns {
  double agreement = 0.98;
  std::int64_t topics = 8;    // 0: every turn is to a fresh direction
  std::int64_t needles = 64;  // each asked for by a row, and marked in a landmark slot, in a direction of its own
  std::uint64_t seed = 1;
};

class TurnSelection {
 public:
  // One document, no sinks, chosen by group. Throws Error(kBadInput) for others.
  TurnSelection(const AttentionProblem& problem, const AttentionPolicy& policy, const partition::SequenceGrid& grid,
                const QueryTurns& turns);

  // The blocks that each of a rank's rows chose, as plan_fetch asks for them. This object outlives the result.
  runtime::RowNeeds needs(const partition::Layout& layout, RankId rank) const;
  // The same by groups of rows, as plan_group_fetch asks for them.
  std::vector<std::uint32_t> marks(const partition::Layout& layout, RankId rank, std::int64_t group_rows) const;

 private:
  // What rows with the same choice have in common.
  struct Choice {
    std::int64_t turn = -1;   // the token at which the direction was turned to
    std::int64_t topic = -1;  // -1: a fresh direction
    std::int64_t eligible = 0;
  };
  // From when on a set of chunks is the choice.
  struct Version {
    std::int64_t eligible = 0;
    std::vector<std::int32_t> chunks;
  };
  bool turns_at(std::int64_t token) const;
  Choice choice_at(TokenId token, const Choice& before) const;
  static bool equal(const Choice& a, const Choice& b);
  void add_blocks(const Choice& choice, std::vector<runtime::BlockId>& blocks) const;
  std::vector<std::int32_t> fresh_chunks(const Choice& choice, std::int64_t kv_head) const;
  const Version& version_of(std::int64_t topic, std::int64_t kv_head, std::int64_t eligible) const;
  void build_topics();

  const AttentionProblem& problem_;
  const partition::SequenceGrid& grid_;
  QueryTurns turns_;
  std::int64_t topk_;
  std::unordered_set<std::int64_t> own_queries_;  // tokens
  std::vector<std::vector<Version>> versions_;    // by topic * kv_heads + kv_head; ascending
};

}  // namespace ringmark::cluster
