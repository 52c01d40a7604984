#include "runtime/layer_output.h"

#include <vector>

#include "runtime/shared_output.h"

namespace ringmark::runtime {
namespace {

SharedFile describe(const OutputFile& file, const AttentionProblem& problem, const AttentionPolicy& policy) {
  SharedFile shared{file.path, result_tensors(problem, problem.tokens), policy_metadata(problem, policy)};
  if (file.with_chunks && policy.selects()) {
    shared.tensors.push_back({"topk_chunks", "I32", {problem.tokens, problem.kv_heads, policy.topk}});
  }
  return shared;
}

}  // namespace

std::vector<kvstore::TensorToWrite> result_tensors(const AttentionProblem& problem, std::int64_t rows) {
  return {{"o", "F32", {rows, problem.heads, problem.head_dim}}, {"lse", "F32", {rows, problem.heads}}};
}

std::map<std::string, std::string> policy_metadata(const AttentionProblem& problem, const AttentionPolicy& policy) {
  return {{"chunk_size", std::to_string(problem.chunk_size)},
          {"window", std::to_string(policy.window)},
          {"topk", std::to_string(policy.topk)},
          {"sinks", std::to_string(policy.sinks)},
          {"scorer", std::string(name_of(policy.scorer))}};
}

void check_output(const OutputFile& file, const AttentionProblem& problem, const AttentionPolicy& policy) {
  check_shared_file(describe(file, problem, policy));
}

void write_output(comm::Communicator& communicator, const OutputFile& file, const AttentionProblem& problem,
                  const AttentionPolicy& policy, const partition::Layout& layout, const PrefillResult& result) {
  std::vector<RowRange> runs;
  for (const Range<TokenId>& run : layout.token_runs(RankId(communicator.rank()))) {
    runs.push_back({run.begin.value(), run.end.value()});
  }
  std::vector<OwnRows> rows = {{"o", runs, std::as_bytes(std::span(result.out))},
                               {"lse", runs, std::as_bytes(std::span(result.lse))}};
  if (file.with_chunks && policy.selects()) {
    rows.push_back({"topk_chunks", runs, std::as_bytes(std::span(result.selection.chunks))});
  }
  write_shared_file(communicator, describe(file, problem, policy), rows);
}

}  // namespace ringmark::runtime
