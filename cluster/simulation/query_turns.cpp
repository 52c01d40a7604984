#include "cluster/simulation/query_turns.h"

#include <algorithm>
#include <queue>

#include "core/error.h"
#include "runtime/counter_random.h"
#include "runtime/planted_needles.h"

namespace ringmark::cluster {
namespace {

using runtime::random_bits;
using runtime::unit_interval;

enum Draw : std::uint64_t { kTurn = 1, kTopic, kScore, kFresh };

}  // namespace

TurnSelection::TurnSelection(const AttentionProblem& problem, const AttentionPolicy& policy,
                             const partition::SequenceGrid& grid, const QueryTurns& turns)
    : problem_(problem), grid_(grid), turns_(turns), topk_(policy.selects() ? policy.topk : 0) {
  if (!problem.cu_seqlens.empty()) fail_bad_input("cu-seqlens does not go with a simulation: it is of one document");
  if (policy.sinks > 0) fail_bad_input("sinks do not go with a simulation of chosen chunks");
  policy.expect_usual_choice("a simulation");
  const runtime::PlantedNeedles needles =
      runtime::place_needles(problem, policy, turns.needles, [](std::int64_t) { return std::uint64_t{0}; });
  for (const auto* at : {&needles.question_at, &needles.landmark_at}) {
    for (const auto& [token, needle] : *at) own_queries_.insert(token);
  }
  if (topk_ > 0 && turns_.topics > 0) build_topics();
}

// The K best of the first e chunks, for every e at which they change: about K ln(chunks / K) times.
void TurnSelection::build_topics() {
  const std::int64_t heads = problem_.kv_heads;
  versions_.resize(static_cast<std::size_t>(turns_.topics * heads));
  for (std::size_t list = 0; list < versions_.size(); ++list) {
    using Scored = std::pair<std::uint64_t, std::int32_t>;
    std::priority_queue<Scored, std::vector<Scored>, std::greater<>> best;
    std::vector<std::int32_t> chunks;
    for (std::int64_t chunk = 0; chunk < grid_.chunk_count(); ++chunk) {
      const Scored scored{random_bits(turns_.seed, kScore, static_cast<std::int64_t>(list), chunk),
                          static_cast<std::int32_t>(chunk)};
      if (std::ssize(chunks) == topk_) {
        if (scored.first <= best.top().first) continue;
        std::erase(chunks, best.top().second);
        best.pop();
      }
      best.push(scored);
      chunks.push_back(scored.second);
      versions_[list].push_back({chunk + 1, chunks});
    }
  }
}

bool TurnSelection::turns_at(std::int64_t token) const {
  return token == 0 || unit_interval(random_bits(turns_.seed, kTurn, token)) >= turns_.agreement;
}

TurnSelection::Choice TurnSelection::choice_at(TokenId token, const Choice& before) const {
  Choice choice = before;
  choice.eligible = grid_.eligible(token).end.value();
  if (!turns_at(token.value()) && before.turn >= 0) return choice;
  choice.turn = token.value();
  while (!turns_at(choice.turn)) --choice.turn;
  choice.topic = turns_.topics == 0 ? -1
                                    : static_cast<std::int64_t>(random_bits(turns_.seed, kTopic, choice.turn) %
                                                                static_cast<std::uint64_t>(turns_.topics));
  return choice;
}

bool TurnSelection::equal(const Choice& a, const Choice& b) {
  return a.eligible == b.eligible && a.topic == b.topic && (a.topic >= 0 || a.turn == b.turn);
}

const TurnSelection::Version& TurnSelection::version_of(std::int64_t topic, std::int64_t kv_head,
                                                        std::int64_t eligible) const {
  const std::vector<Version>& all = versions_[static_cast<std::size_t>(topic * problem_.kv_heads + kv_head)];
  const auto later = std::upper_bound(all.begin(), all.end(), eligible,
                                      [](std::int64_t e, const Version& version) { return e < version.eligible; });
  return *(later - 1);
}

// K chunks at random out of those that are eligible where the direction is turned to; each that comes later takes the
// place of one of them with probability K / e.
std::vector<std::int32_t> TurnSelection::fresh_chunks(const Choice& choice, std::int64_t kv_head) const {
  const auto draw = [&](std::int64_t part, std::int64_t below) {
    const std::uint64_t bits = random_bits(turns_.seed, kFresh, choice.turn * problem_.kv_heads + kv_head, part);
    return static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(below));
  };
  const std::int64_t first = grid_.eligible(TokenId(choice.turn)).end.value();
  std::vector<std::int32_t> chunks;
  for (std::int64_t e = std::max<std::int64_t>(0, first - topk_); e < first; ++e) {
    auto chunk = static_cast<std::int32_t>(draw(e, e + 1));
    if (std::find(chunks.begin(), chunks.end(), chunk) != chunks.end()) chunk = static_cast<std::int32_t>(e);
    chunks.push_back(chunk);
  }
  for (std::int64_t e = first; e < choice.eligible; ++e) {
    if (std::ssize(chunks) < topk_) {
      chunks.push_back(static_cast<std::int32_t>(e));
    } else if (const std::int64_t place = draw(e, e + 1); place < topk_) {
      chunks[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(e);
    }
  }
  return chunks;
}

void TurnSelection::add_blocks(const Choice& choice, std::vector<runtime::BlockId>& blocks) const {
  if (choice.eligible == 0 || topk_ == 0) return;
  for (std::int64_t kv_head = 0; kv_head < problem_.kv_heads; ++kv_head) {
    const auto add = [&](const std::vector<std::int32_t>& chunks) {
      for (const std::int32_t chunk : chunks) blocks.push_back({ChunkId(chunk), kv_head});
    };
    if (choice.topic >= 0) {
      add(version_of(choice.topic, kv_head, choice.eligible).chunks);
    } else {
      add(fresh_chunks(choice, kv_head));
    }
  }
}

runtime::RowNeeds TurnSelection::needs(const partition::Layout& layout, RankId rank) const {
  return [this, tokens = layout.tokens_of(rank), turned = Choice{}, choice = Choice{}](
             std::int64_t row, std::vector<runtime::BlockId>& blocks) mutable {
    const auto at = static_cast<std::size_t>(row);
    const bool follows = at > 0 && tokens[at - 1] + 1 == tokens[at];
    turned = choice_at(tokens[at], follows ? turned : Choice{});
    // A needle's question asks in a direction of its own; the row behind it goes on as if it had not been there.
    const bool own = own_queries_.contains(tokens[at].value());
    const Choice next = own ? Choice{tokens[at].value(), -1, turned.eligible} : turned;
    const bool same = at > 0 && equal(choice, next);
    choice = next;
    if (same) return false;
    add_blocks(choice, blocks);
    return true;
  };
}

std::vector<std::uint32_t> TurnSelection::marks(const partition::Layout& layout, RankId rank,
                                                std::int64_t group_rows) const {
  const auto words = static_cast<std::size_t>((grid_.chunk_count() * problem_.kv_heads + 31) / 32);
  const std::int64_t rows = layout.token_count(rank);
  std::vector<std::uint32_t> bits(static_cast<std::size_t>((rows + group_rows - 1) / group_rows) * words);
  const runtime::RowNeeds needs_of = needs(layout, rank);
  std::vector<runtime::BlockId> blocks, listed;
  for (std::int64_t row = 0; row < rows; ++row) {
    listed.clear();
    if (needs_of(row, listed)) {
      blocks = listed;
    } else if (row % group_rows != 0) {
      continue;
    }
    std::uint32_t* group = bits.data() + static_cast<std::size_t>(row / group_rows) * words;
    for (const runtime::BlockId& block : blocks) {
      const auto bit = static_cast<std::size_t>(block.chunk.value() * problem_.kv_heads + block.kv_head);
      group[bit / 32] |= std::uint32_t{1} << (bit % 32);
    }
  }
  return bits;
}

}  // namespace ringmark::cluster
