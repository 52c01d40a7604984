// The result of a prefill as a safetensors file: o [N, H, d] F32, lse [N, H] F32 and, if asked for, topk_chunks
// [N, choosers, K] I32 (ids ascending, -1 unused), in token order whatever the layout. Described in docs/formats.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/problem.h"
#include "kvstore/safetensors_writer.h"
#include "partition/layout.h"
#include "runtime/prefill.h"

namespace ringmark::runtime {

struct OutputFile {
  std::string path;
  bool with_chunks = false;
  std::map<std::string, std::string> metadata = {};  // besides that of every result, or instead of it
};

// What every file of results holds: o and lse of `rows` rows, and the policy behind them.
std::vector<kvstore::TensorToWrite> result_tensors(const AttentionProblem& problem, std::int64_t rows);
std::map<std::string, std::string> policy_metadata(const AttentionProblem& problem, const AttentionPolicy& policy);

// The chosen chunks of all tokens.
inline constexpr const char* kChunksTensor = "topk_chunks";
kvstore::TensorToWrite chunks_tensor(const AttentionProblem& problem, const AttentionPolicy& policy);
// Where the first `rows` rows of a rank stand in a file of all tokens, in their order.
std::vector<RowRange> rows_of_file(const partition::Layout& layout, RankId rank, std::int64_t rows);

// Throws Error when the file could not be written as things stand: folder, permissions, space. Leaves nothing behind.
void check_output(const OutputFile& file, const AttentionProblem& problem, const AttentionPolicy& policy);

// Collective: every rank writes its rows; the file appears whole or not at all.
void write_output(comm::Communicator& communicator, const OutputFile& file, const AttentionProblem& problem,
                  const AttentionPolicy& policy, const partition::Layout& layout, const PrefillResult& result);

}  // namespace ringmark::runtime
