#include "runtime/recall.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "kernels/chunk_masses.h"

namespace ringmark::runtime {
namespace {

using kernels::KeyMass;
using kernels::Selection;

// Rows whose masses are exchanged at a time: whole tiles of 32, and little to wait for where one rank has more keys.
constexpr std::int64_t kRoundRows = 128;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

std::uint64_t hash(std::uint64_t seed, std::int64_t token) {  // splitmix64
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(token) + 0x9E3779B97F4A7C15ull;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
  return state ^ (state >> 31);
}

// All sampled tokens, ascending; every rank finds the same.
std::vector<TokenId> sample(const partition::SequenceGrid& grid, const partition::Layout& layout,
                            const RecallOptions& options) {
  std::vector<TokenId> tokens;
  for (ChunkId chunk(0); chunk < ChunkId(grid.chunk_count()); ++chunk) {
    if (!layout.has_rows(chunk)) continue;
    const Range<TokenId> slots = grid.tokens_of(chunk);
    for (TokenId token = slots.begin; token < slots.end; ++token) {
      if (is_sampled(options, token)) tokens.push_back(token);
    }
  }
  return tokens;
}

// Row records of fixed size that travel from their owners to every rank: queries, or chosen chunks.
struct RowRecords {
  const std::byte* own = nullptr;  // of the rows of this rank
  std::size_t bytes = 0;           // of one record
};

class Measurement {
 public:
  Measurement(comm::Communicator& communicator, const AttentionProblem& problem, const partition::Layout& layout,
              const PrefillState& state, const RowsView& queries, const RecallOptions& options)
      : communicator_(communicator),
        problem_(problem),
        layout_(layout),
        state_(state),
        queries_(queries),
        options_(options),
        blocks_(kernels::BlockShape::of(problem), state.grid.chunk_count(), problem.kv_heads) {
    const std::byte* block = state.blocks.data();
    for (const ChunkId chunk : state.chunks) {
      for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) {
        blocks_.set(chunk, kv_head, block);
        block += blocks_.shape().bytes();
      }
    }
  }

  // [rows, H] recall of every pair, NaN for one without a key.
  std::vector<float> run(std::span<const TokenId> tokens) {
    std::vector<float> shares;
    shares.reserve(tokens.size() * size(problem_.heads));
    for (std::size_t first = 0; first < tokens.size(); first += size(kRoundRows)) {
      const auto round = tokens.subspan(first, std::min(size(kRoundRows), tokens.size() - first));
      for (const KeyMass& mass : merge(own_masses(round))) {
        shares.push_back(mass.all.empty() ? NAN : static_cast<float>(share_of(mass)));
      }
    }
    return shares;
  }

 private:
  static double share_of(const KeyMass& mass) { return mass.kept.empty() ? 0.0 : mass.kept.share_of(mass.all); }

  RankId owner(TokenId token) const { return layout_.owner(state_.grid.chunk_of(token)); }

  // The records of a round's rows, in its order, of whichever rank they are.
  std::vector<std::byte> gather(std::span<const TokenId> round, const RowRecords& records) {
    std::vector<std::vector<std::byte>> by_rank(size(communicator_.size()));
    for (const TokenId token : round) {
      std::vector<std::byte>& of_owner = by_rank[size(owner(token).value())];
      of_owner.resize(of_owner.size() + records.bytes);
    }
    std::vector<std::byte> mine;
    for (const TokenId token : round) {
      if (owner(token) != RankId(communicator_.rank())) continue;
      const ChunkId chunk = state_.grid.chunk_of(token);
      const std::int64_t row = layout_.first_row(chunk) + (token - state_.grid.tokens_of(chunk).begin);
      const std::byte* record = records.own + size(row) * records.bytes;
      mine.insert(mine.end(), record, record + records.bytes);
    }
    const std::vector<comm::Bytes> all(by_rank.begin(), by_rank.end());
    communicator_.all_gather("sampled rows", mine, all);
    std::vector<std::byte> gathered(round.size() * records.bytes);
    std::vector<std::size_t> taken(by_rank.size());
    for (std::size_t row = 0; row < round.size(); ++row) {
      const std::size_t rank = size(owner(round[row]).value());
      std::copy_n(by_rank[rank].begin() + static_cast<std::ptrdiff_t>(taken[rank]), records.bytes,
                  gathered.begin() + static_cast<std::ptrdiff_t>(row * records.bytes));
      taken[rank] += records.bytes;
    }
    return gathered;
  }

  std::vector<KeyMass> own_masses(std::span<const TokenId> round) {
    const auto row_bytes = problem_.heads * problem_.head_dim * size_of(problem_.dtype);
    const std::vector<std::byte> rows = gather(round, {queries_.data, size(row_bytes)});
    const RowsView queries{rows.data(), problem_.dtype, std::ssize(round), problem_.heads, problem_.head_dim};
    const Selection& own = state_.selection;
    Selection selection(std::ssize(round), own.choosers, own.topk);
    const std::size_t list_bytes = size(own.choosers * own.topk) * sizeof(std::int32_t);
    if (list_bytes > 0) {
      const auto lists = gather(round, {reinterpret_cast<const std::byte*>(own.chunks.data()), list_bytes});
      if (!lists.empty()) std::memcpy(selection.chunks.data(), lists.data(), lists.size());
    }
    std::vector<KeyMass> masses(round.size() * size(problem_.heads));
    kernels::add_chunk_masses(problem_, state_.grid, queries, round, selection, state_.chunks, blocks_, masses,
                              options_.threads);
    return masses;
  }

  // What the ranks' chunks add up to.
  std::vector<KeyMass> merge(const std::vector<KeyMass>& mine) {
    std::vector<std::vector<KeyMass>> parts(size(communicator_.size()), std::vector<KeyMass>(mine.size()));
    std::vector<comm::Bytes> all;
    for (std::vector<KeyMass>& part : parts) all.push_back(std::as_writable_bytes(std::span(part)));
    communicator_.all_gather("sampled masses", std::as_bytes(std::span(mine)), all);
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
      for (std::size_t i = 0; i < mine.size(); ++i) parts[0][i].add(parts[rank][i]);
    }
    return std::move(parts[0]);
  }

  comm::Communicator& communicator_;
  const AttentionProblem& problem_;
  const partition::Layout& layout_;
  const PrefillState& state_;
  const RowsView& queries_;
  const RecallOptions& options_;
  kernels::BlockTable blocks_;
};

RecallShare summarise(std::vector<float> shares) {
  RecallShare share;
  share.pairs = std::ssize(shares);
  if (shares.empty()) return share;
  std::sort(shares.begin(), shares.end());
  share.p5 = shares[(shares.size() + 19) / 20 - 1];
  double sum = 0.0;
  for (const float value : shares) sum += value;
  share.mean = sum / static_cast<double>(shares.size());
  return share;
}

}  // namespace

bool is_sampled(const RecallOptions& options, TokenId token) {
  return static_cast<double>(hash(options.seed, token.value()) >> 11) * 0x1p-53 < options.fraction;
}

bool Recall::collapses() const {
  const auto low = [](const RecallShare& depth) { return depth.mean < kCollapse; };
  return all.p5 < kCollapse || std::any_of(depths.begin(), depths.end(), low);
}

std::int64_t recall_bytes(const AttentionProblem& problem, const AttentionPolicy& policy, int ranks, double fraction) {
  const auto rows = static_cast<std::int64_t>(std::ceil(fraction * static_cast<double>(problem.tokens)));
  const std::int64_t round = std::min(rows, kRoundRows);
  const std::int64_t query_bytes = problem.heads * problem.head_dim * size_of(problem.dtype);
  const std::int64_t list_bytes = policy.selects() ? policy.choosers(problem) * policy.topk * 4 : 0;
  const std::int64_t mass_bytes = problem.heads * static_cast<std::int64_t>(sizeof(KeyMass));
  // Tokens, and three copies of the shares: as measured, by depth, all of them sorted. Rows of a round are sent,
  // received and put in order; of masses there are those of this rank and of every one.
  return rows * (8 + 3 * problem.heads * 4) + round * (3 * (query_bytes + list_bytes) + (ranks + 1) * mass_bytes) +
         problem.chunks_at_most() * problem.kv_heads * 8;
}

Recall measure_recall(comm::Communicator& communicator, const AttentionProblem& problem,
                      const partition::Layout& layout, const PrefillState& state, const RowsView& queries,
                      const RecallOptions& options) {
  const std::vector<TokenId> tokens = sample(state.grid, layout, options);
  const std::vector<float> shares = Measurement(communicator, problem, layout, state, queries, options).run(tokens);
  std::vector<float> all;
  std::array<std::vector<float>, Recall::kDepths> by_depth;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (std::isnan(shares[i])) continue;
    const std::int64_t token = tokens[i / size(problem.heads)].value();
    const auto depth = static_cast<std::size_t>(token * std::int64_t{Recall::kDepths} / problem.tokens);
    all.push_back(shares[i]);
    by_depth[depth].push_back(shares[i]);
  }
  Recall recall;
  recall.rows = std::ssize(tokens);
  recall.all = summarise(std::move(all));
  for (std::size_t depth = 0; depth < Recall::kDepths; ++depth) {
    recall.depths[depth] = summarise(std::move(by_depth[depth]));
  }
  return recall;
}

}  // namespace ringmark::runtime
