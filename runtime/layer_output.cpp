#include "runtime/layer_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "runtime/shared_output.h"

namespace ringmark::runtime {
namespace {

SharedFile describe(const OutputFile& file, const AttentionProblem& problem, const AttentionPolicy& policy) {
  SharedFile shared{file.path, result_tensors(problem, problem.tokens), policy_metadata(problem, policy)};
  for (const auto& [key, value] : file.metadata) shared.metadata.insert_or_assign(key, value);
  if (file.with_chunks && policy.selects()) shared.tensors.push_back(chunks_tensor(problem, policy));
  return shared;
}

}  // namespace

std::vector<kvstore::TensorToWrite> result_tensors(const AttentionProblem& problem, std::int64_t rows) {
  return {{"o", "F32", {rows, problem.heads, problem.head_dim}}, {"lse", "F32", {rows, problem.heads}}};
}

std::map<std::string, std::string> policy_metadata(const AttentionProblem& problem, const AttentionPolicy& policy) {
  std::map<std::string, std::string> metadata = {{"chunk_size", std::to_string(problem.chunk_size)},
                                                 {"window", std::to_string(policy.window)},
                                                 {"topk", std::to_string(policy.topk)},
                                                 {"sinks", std::to_string(policy.sinks)},
                                                 {"scorer", std::string(name_of(policy.scorer))},
                                                 {"choice", std::string(name_of(policy.choice))},
                                                 {"fusion", std::string(name_of(policy.fusion))}};
  if (policy.landmark_positions != LandmarkPositions::kTrue) {
    metadata["landmark_positions"] = name_of(policy.landmark_positions);
  }
  if (policy.edge != WindowEdge::kChunk) metadata["edge"] = name_of(policy.edge);
  if (policy.edge == WindowEdge::kSegment) metadata["segment"] = std::to_string(policy.segment);
  if (problem.logit_cap > 0.0f) metadata["logit_cap"] = fmt::format("{}", problem.logit_cap);
  if (problem.alibi) metadata.emplace("alibi", "1");
  if (!problem.sink_logits.empty()) metadata["sink_logits"] = fmt::format("{}", fmt::join(problem.sink_logits, ","));
  return metadata;
}

kvstore::TensorToWrite chunks_tensor(const AttentionProblem& problem, const AttentionPolicy& policy) {
  return {kChunksTensor, "I32", {problem.tokens, policy.choosers(problem), policy.topk}};
}

std::vector<RowRange> rows_of_file(const partition::Layout& layout, RankId rank, std::int64_t rows) {
  std::vector<RowRange> runs;
  for (const Range<TokenId>& run : layout.token_runs(rank)) {
    const std::int64_t begin = run.begin.value();
    const std::int64_t end = std::min(run.end.value(), begin + rows);
    if (end > begin) runs.push_back({begin, end});
    rows -= end - begin;
  }
  return runs;
}

void check_output(const OutputFile& file, const AttentionProblem& problem, const AttentionPolicy& policy) {
  check_shared_file(describe(file, problem, policy));
}

void write_output(comm::Communicator& communicator, const OutputFile& file, const AttentionProblem& problem,
                  const AttentionPolicy& policy, const partition::Layout& layout, const PrefillResult& result) {
  const RankId rank(communicator.rank());
  const std::vector<RowRange> runs = rows_of_file(layout, rank, layout.token_count(rank));
  std::vector<OwnRows> rows = {{"o", runs, std::as_bytes(std::span(result.out))},
                               {"lse", runs, std::as_bytes(std::span(result.lse))}};
  if (file.with_chunks && policy.selects()) {
    rows.push_back({kChunksTensor, runs, std::as_bytes(std::span(result.selection.chunks))});
  }
  write_shared_file(communicator, describe(file, problem, policy), rows);
}

}  // namespace ringmark::runtime
