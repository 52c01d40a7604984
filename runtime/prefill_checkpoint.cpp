#include "runtime/prefill_checkpoint.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "kvstore/crc32c.h"
#include "kvstore/safetensors_file.h"
#include "runtime/agreement.h"
#include "runtime/layer_output.h"
#include "runtime/layer_tensors.h"

namespace ringmark::runtime {
namespace {

using kernels::Selection;
using kvstore::SafetensorsFile;

constexpr const char* kRowsDone = "rows_done";   // [ranks, 4] I64
constexpr const char* kChecksums = "checksums";  // [ranks, 2] U32: of the input, of all other tensors

using RowsDoneRow = std::array<std::int64_t, 4>;  // windowed, selected, attended, milliseconds
using ChecksumsRow = std::array<std::uint32_t, 2>;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

RowsDoneRow row_of(const RowsDone& done) {
  return {done.windowed, done.selected, done.attended, std::llround(done.seconds * 1e3)};
}

RowsDone rows_done_of(const RowsDoneRow& row) { return {row[0], row[1], row[2], static_cast<double>(row[3]) * 1e-3}; }

std::uint32_t checksum_of_input(const AttentionProblem& problem, const LayerShard& shard) {
  std::uint32_t checksum = kvstore::crc32c(std::as_bytes(std::span(problem.cu_seqlens)));
  const auto add = [&](const RowsView& rows) { checksum = kvstore::crc32c({rows.data, size(rows.bytes())}, checksum); };
  add(shard.queries());
  if (shard.retrieval_queries().data != shard.queries().data) add(shard.retrieval_queries());
  if (shard.landmark_queries().rows > 0) add(shard.landmark_queries());
  if (shard.has_sink_queries()) add(shard.sink_queries());
  add(shard.keys());
  add(shard.values());
  return checksum;
}

// The first rows of [rows, width].
template <class Value>
std::span<const std::byte> first_rows(const std::vector<Value>& values, std::int64_t rows, std::int64_t width) {
  return std::as_bytes(std::span(values).first(size(rows * width)));
}

// What a rank has in the file besides its checksums: rows of a result, which outlives this.
struct RankRows {
  RankRows(const AttentionProblem& problem, const AttentionPolicy& policy, const partition::Layout& layout, RankId rank,
           const PrefillResult& result)
      : rows_done(row_of(result.done)),
        of_rank{{rank.value(), rank.value() + 1}},
        windowed(rows_of_file(layout, rank, result.done.windowed)),
        selected(rows_of_file(layout, rank, result.done.selected)) {
    const std::int64_t width = problem.heads * problem.head_dim;
    tensors = {{kRowsDone, of_rank, std::as_bytes(std::span(rows_done))},
               {"o", windowed, first_rows(result.out, result.done.windowed, width)},
               {"lse", windowed, first_rows(result.lse, result.done.windowed, problem.heads)}};
    if (!policy.selects()) return;
    const std::int64_t slots = policy.choosers(problem) * policy.topk;
    tensors.push_back({kChunksTensor, selected, first_rows(result.selection.chunks, result.done.selected, slots)});
  }
  RankRows(const RankRows&) = delete;
  RankRows& operator=(const RankRows&) = delete;

  std::uint32_t checksum() const {
    std::uint32_t checksum = 0;
    for (const OwnRows& tensor : tensors) checksum = kvstore::crc32c(tensor.data, checksum);
    return checksum;
  }

  RowsDoneRow rows_done;
  std::vector<RowRange> of_rank, windowed, selected;
  std::vector<OwnRows> tensors;
};

template <std::size_t count, class Number>
std::array<Number, count> read_row_of_rank(const SafetensorsFile& file, const char* name, RankId rank) {
  std::array<Number, count> row{};
  file.read_rows(file.tensor(name), {rank.value(), rank.value() + 1}, std::as_writable_bytes(std::span(row)));
  return row;
}

// Room for all rows: the rest of them is added without a move.
std::vector<float> read_first_rows(const SafetensorsFile& file, const char* name, std::span<const RowRange> rows,
                                   std::int64_t done, std::int64_t all, std::int64_t width) {
  std::vector<float> values;
  values.reserve(size(all * width));
  values.resize(size(done * width));
  read_runs(file, file.tensor(name), rows, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace

PrefillCheckpoint::PrefillCheckpoint(std::string path, const AttentionProblem& problem, const AttentionPolicy& policy,
                                     const partition::Layout& layout, RankId rank, const LayerShard& shard,
                                     const std::map<std::string, std::string>& run)
    : path_(std::move(path)),
      problem_(problem),
      policy_(policy),
      layout_(layout),
      rank_(rank),
      belongs_to_(policy_metadata(problem, policy)),
      input_checksum_(checksum_of_input(problem, shard)) {
  belongs_to_.insert(run.begin(), run.end());
  belongs_to_["ranks"] = std::to_string(layout.ranks());
  belongs_to_["tokens"] = std::to_string(problem.tokens);
  belongs_to_["heads"] = std::to_string(problem.heads);
  belongs_to_["kv_heads"] = std::to_string(problem.kv_heads);
  belongs_to_["head_dim"] = std::to_string(problem.head_dim);
  belongs_to_["dtype"] = name_of(problem.dtype);
  belongs_to_["scale"] = fmt::format("{}", problem.scale);
  belongs_to_["landmark_slots"] = std::to_string(problem.landmark_slots);
}

SharedFile PrefillCheckpoint::describe() const {
  SharedFile file{path_, {{kRowsDone, "I64", {layout_.ranks(), 4}}, {kChecksums, "U32", {layout_.ranks(), 2}}}, {}};
  file.metadata = belongs_to_;
  for (kvstore::TensorToWrite& tensor : result_tensors(problem_, problem_.tokens)) file.tensors.push_back(tensor);
  if (policy_.selects()) file.tensors.push_back(chunks_tensor(problem_, policy_));
  return file;
}

PrefillCheckpoint::Found PrefillCheckpoint::find(comm::Communicator& communicator) const {
  std::error_code ignored;
  const std::int64_t exists = std::filesystem::exists(path_, ignored) ? 1 : 0;
  Found found;
  if (communicator.gather_sizes("look for a checkpoint", exists)[0] == 0) return found;
  agree(communicator, "read the checkpoint", [&] {
    try {
      found.begun = read();
    } catch (const Error& error) {
      if (error.code() != ExitCode::kBadInput) throw;
      found.refusal = error.what();
    }
  });
  for (const std::string& refusal : communicator.gather_texts("share the checkpoint", found.refusal)) {
    if (!refusal.empty()) return {{}, refusal};
  }
  return found;
}

PrefillResult PrefillCheckpoint::read() const {
  const SafetensorsFile file(path_);
  check_belongs_here(file);
  PrefillResult begun;
  begun.done = rows_done_of(read_row_of_rank<4, std::int64_t>(file, kRowsDone, rank_));
  const auto& [windowed, selected, attended, seconds] = begun.done;
  const std::int64_t all = layout_.token_count(rank_);
  if (attended < 0 || selected < attended || windowed < selected || all < windowed || seconds < 0) {
    fail_in(file, fmt::format("rank {} cannot have {}, {} and {} of {} rows done", rank_.value(), windowed, selected,
                              attended, all));
  }
  const auto rows = rows_of_file(layout_, rank_, windowed);
  begun.out = read_first_rows(file, "o", rows, windowed, all, problem_.heads * problem_.head_dim);
  begun.lse = read_first_rows(file, "lse", rows, windowed, all, problem_.heads);
  if (policy_.selects()) {
    begun.selection = Selection(all, policy_.choosers(problem_), policy_.topk);
    const std::int64_t slots = selected * policy_.choosers(problem_) * policy_.topk;
    read_runs(file, file.tensor(kChunksTensor), rows_of_file(layout_, rank_, selected),
              std::as_writable_bytes(std::span(begun.selection.chunks).first(size(slots))));
  }
  const auto [of_input, of_rows] = read_row_of_rank<2, std::uint32_t>(file, kChecksums, rank_);
  if (of_input != input_checksum_) fail_in(file, fmt::format("rank {} had another input", rank_.value()));
  const std::uint32_t checksum = RankRows(problem_, policy_, layout_, rank_, begun).checksum();
  if (of_rows != checksum) {
    fail_in(file,
            fmt::format("the rows of rank {} have checksum {:08x}, not {:08x}", rank_.value(), checksum, of_rows));
  }
  return begun;
}

void PrefillCheckpoint::check_belongs_here(const SafetensorsFile& file) const {
  for (const auto& [key, value] : belongs_to_) {
    const auto entry = file.header().metadata.find(key);
    const std::string has = entry == file.header().metadata.end() ? "nothing" : entry->second;
    if (has != value) fail_in(file, fmt::format("metadata {} is {:.40}, this run has {}", key, has, value));
  }
  for (const kvstore::TensorToWrite& tensor : describe().tensors) {
    const kvstore::StoredTensor& stored = file.tensor(tensor.name);
    expect_shape(file, stored, tensor.shape);
    if (stored.dtype != tensor.dtype) {
      fail_in(file, fmt::format("tensor {} has dtype {}, not {}", tensor.name, stored.dtype, tensor.dtype));
    }
  }
}

void PrefillCheckpoint::write(comm::Communicator& communicator, const PrefillResult& result) const {
  std::error_code ignored;  // a file that cannot be created there says why
  if (rank_ == RankId(0)) std::filesystem::create_directory(std::filesystem::path(path_).parent_path(), ignored);
  RankRows own(problem_, policy_, layout_, rank_, result);
  const ChecksumsRow checksums = {input_checksum_, own.checksum()};
  own.tensors.push_back({kChecksums, own.of_rank, std::as_bytes(std::span(checksums))});
  write_shared_file(communicator, describe(), own.tensors);
}

void PrefillCheckpoint::remove(comm::Communicator& communicator) const {
  if (communicator.rank() != 0) return;
  std::error_code ignored;  // what stays is not taken for another input
  std::filesystem::remove(path_, ignored);
}

}  // namespace ringmark::runtime
