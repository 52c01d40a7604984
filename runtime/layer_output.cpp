#include "runtime/layer_output.h"

#include <optional>

#include "kvstore/safetensors_writer.h"
#include "runtime/agreement.h"

namespace ringmark::runtime {
namespace {

using kvstore::SafetensorsWriter;

SafetensorsWriter create(const OutputFile& file, const AttentionProblem& problem, const AttentionPolicy& policy) {
  std::vector<kvstore::TensorToWrite> tensors = {{"o", "F32", {problem.tokens, problem.heads, problem.head_dim}},
                                                 {"lse", "F32", {problem.tokens, problem.heads}}};
  if (file.with_chunks && policy.selects()) {
    tensors.push_back({"topk_chunks", "I32", {problem.tokens, problem.kv_heads, policy.topk}});
  }
  return SafetensorsWriter::create(file.path, tensors,
                                   {{"chunk_size", std::to_string(problem.chunk_size)},
                                    {"window", std::to_string(policy.window)},
                                    {"topk", std::to_string(policy.topk)},
                                    {"sinks", std::to_string(policy.sinks)},
                                    {"scorer", std::string(name_of(policy.scorer))}});
}

template <class T>
void write_rows(SafetensorsWriter& writer, const char* tensor, const std::vector<Range<TokenId>>& runs,
                const std::vector<T>& rows, std::int64_t width) {
  std::span<const T> rest = rows;
  for (const Range<TokenId>& run : runs) {
    const auto count = static_cast<std::size_t>(run.size() * width);
    writer.write_rows(tensor, {run.begin.value(), run.end.value()}, std::as_bytes(rest.first(count)));
    rest = rest.subspan(count);
  }
}

}  // namespace

void check_output(const OutputFile& file, const AttentionProblem& problem, const AttentionPolicy& policy) {
  create(file, problem, policy);
}

void write_output(comm::Communicator& communicator, const OutputFile& file, const AttentionProblem& problem,
                  const AttentionPolicy& policy, const partition::Layout& layout, const PrefillResult& result) {
  std::optional<SafetensorsWriter> writer;
  agree(communicator, "create the output", [&] {
    if (communicator.rank() == 0) writer.emplace(create(file, problem, policy));
  });
  const auto tokens =
      communicator.gather_sizes("name the output", writer ? static_cast<std::int64_t>(writer->temporary_token()) : 0);
  agree(communicator, "write the output", [&] {
    if (!writer) writer.emplace(SafetensorsWriter::join(file.path, static_cast<std::uint64_t>(tokens[0])));
    const auto runs = layout.token_runs(RankId(communicator.rank()));
    write_rows(*writer, "o", runs, result.out, problem.heads * problem.head_dim);
    write_rows(*writer, "lse", runs, result.lse, problem.heads);
    if (file.with_chunks && policy.selects()) {
      write_rows(*writer, "topk_chunks", runs, result.selection.chunks, problem.kv_heads * policy.topk);
    }
    writer->flush();
  });
  agree(communicator, "commit the output", [&] {
    if (communicator.rank() == 0) writer->commit();
  });
}

}  // namespace ringmark::runtime
