#include "cluster/prefill/prefix_source.h"

#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <utility>

#include "core/error.h"
#include "kvstore/prefix_chains.h"
#include "runtime/agreement.h"

namespace ringmark::cluster {
namespace {

kvstore::Snapshot open_snapshot(comm::Communicator& ranks, const std::string& folder) {
  std::optional<kvstore::Snapshot> snapshot;
  runtime::agree(ranks, "open the snapshot", [&] { snapshot.emplace(kvstore::Snapshot::open(ranks, folder)); });
  return std::move(*snapshot);
}

}  // namespace

PrefixSource::PrefixSource(const PrefillOptions& options, const LayerSource& input, comm::Communicator& ranks)
    : input_(input), snapshot_(open_snapshot(ranks, options.reuse)) {
  const AttentionProblem& problem = input.problem();
  runtime::agree(ranks, "look for kept prefixes", [&] {
    runtime::expect_reusable(options.reuse, snapshot_.manifest(), {problem, input.policy()});
    const std::vector<std::int64_t> token_ids = input.token_ids();
    if (token_ids.empty()) {
      fail_bad_input(fmt::format("{}: has no tensor token_ids; without it nothing of {} can be reused", options.input,
                                 options.reuse));
    }
    starts_ = runtime::match_prefixes(problem, kvstore::prefix_chains(problem, token_ids), snapshot_.manifest());
    runtime::check_reused_rows(options.reuse, snapshot_, problem, starts_, RankId(ranks.rank()), ranks.size(),
                               [&](std::span<const RowRange> tokens) { return input.rows(tokens); });
  });
  report_.folder = options.reuse;
  report_.generation = snapshot_.manifest().generation;
  for (const runtime::KeptStart& start : starts_) {
    report_.documents += start.tokens > 0 ? 1 : 0;
    report_.tokens += start.tokens;
    report_.chunks += start.tokens / problem.chunk_size;
  }
}

std::int64_t PrefixSource::bytes() const {
  constexpr std::int64_t kHash = 112;  // 64 digits in a string of their own
  return std::ssize(snapshot_.manifest().prefixes.hashes) * kHash + runtime::ReusedChunks::bytes_of(input_.problem());
}

}  // namespace ringmark::cluster
