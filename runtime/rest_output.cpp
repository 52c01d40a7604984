#include "runtime/rest_output.h"

#include <algorithm>
#include <vector>

#include "runtime/shared_output.h"

namespace ringmark::runtime {
namespace {

constexpr const char* kTokenTensor = "token";

SharedFile describe(const OutputFile& file, const AttentionProblem& problem, const AttentionPolicy& policy,
                    std::int64_t rows) {
  SharedFile shared{file.path, result_tensors(problem, rows), policy_metadata(problem, policy)};
  shared.tensors.push_back({kTokenTensor, "I64", {rows}});
  if (file.with_chunks && policy.selects()) {
    shared.tensors.push_back({kChunksTensor, "I32", {rows, problem.kv_heads, policy.topk}});
  }
  return shared;
}

// Where the rows of a rank stand among those of all ranks in the order of their tokens.
std::vector<RowRange> rows_of_rest(const partition::Layout& layout, RankId rank) {
  struct Run {
    Range<TokenId> tokens;
    RankId owner;
  };
  std::vector<Run> runs;
  for (int owner = 0; owner < layout.ranks(); ++owner) {
    for (const Range<TokenId>& tokens : layout.token_runs(RankId(owner))) runs.push_back({tokens, RankId(owner)});
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.tokens.begin < b.tokens.begin; });
  std::vector<RowRange> rows;
  std::int64_t next = 0;
  for (const Run& run : runs) {
    const RowRange of_run{next, next + run.tokens.size()};
    if (run.owner == rank) rows.push_back(of_run);
    next = of_run.end;
  }
  return rows;
}

}  // namespace

void check_rest_output(const OutputFile& file, const AttentionProblem& problem, const AttentionPolicy& policy,
                       std::int64_t rows) {
  check_shared_file(describe(file, problem, policy, rows));
}

void write_rest_output(comm::Communicator& communicator, const OutputFile& file, const AttentionProblem& problem,
                       const AttentionPolicy& policy, const partition::Layout& layout, const PrefillResult& result) {
  const RankId rank(communicator.rank());
  const std::vector<RowRange> runs = rows_of_rest(layout, rank);
  std::vector<std::int64_t> tokens;
  for (const TokenId token : layout.tokens_of(rank)) tokens.push_back(token.value());
  std::vector<OwnRows> rows = {{"o", runs, std::as_bytes(std::span(result.out))},
                               {"lse", runs, std::as_bytes(std::span(result.lse))},
                               {kTokenTensor, runs, std::as_bytes(std::span(tokens))}};
  if (file.with_chunks && policy.selects()) {
    rows.push_back({kChunksTensor, runs, std::as_bytes(std::span(result.selection.chunks))});
  }
  write_shared_file(communicator, describe(file, problem, policy, layout.token_count()), rows);
}

}  // namespace ringmark::runtime
