#include "runtime/steps_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "kvstore/crc32c.h"
#include "runtime/layer_tensors.h"

namespace ringmark::runtime {
namespace {

using kvstore::SafetensorsFile;
using kvstore::StoredTensor;

constexpr std::int64_t kReadAtOnce = std::int64_t{1} << 20;  // bytes of a tensor, for its checksum

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

std::vector<std::int64_t> kept_lengths(const AttentionProblem& problem) {
  const std::vector<std::int64_t> starts = problem.starts();
  std::vector<std::int64_t> lengths;
  for (std::size_t s = 0; s + 1 < starts.size(); ++s) lengths.push_back(starts[s + 1] - starts[s]);
  return lengths;
}

// One integer a row; empty when the file has no such tensor.
std::vector<std::int64_t> read_row_integers(const SafetensorsFile& file, const char* name, std::int64_t rows) {
  const StoredTensor* const tensor = file.header().find(name);
  if (tensor == nullptr) return {};
  expect_shape(file, *tensor, {rows});
  expect_integers(file, *tensor);
  return read_integers(file, *tensor);
}

// The layer is the snapshot's; metadata that describes another one belongs to other rows.
template <class Value>
void expect_metadata(const SafetensorsFile& file, const char* key, const std::optional<Value>& given, Value kept) {
  if (!given || *given == kept) return;
  fail_in(file, fmt::format("metadata {} = {}, but the snapshot has {}", key, *given, kept));
}

}  // namespace

StepsFile::StepsFile(const std::string& path, const kvstore::SnapshotManifest& kept, std::int64_t skip)
    : file_(path), problem_(kept.problem) {
  check_against(kept);
  const std::int64_t all = file_.tensor("q").shape[0];
  sequences_ = read_row_integers(file_, "sequence", all);
  if (sequences_.empty()) sequences_.assign(size(all), 0);
  positions_ = read_row_integers(file_, "position", all);
  token_ids_ = read_row_integers(file_, "token_ids", all);
  if (skip > all) fail_in(file_, fmt::format("skip = {} is above the {} rows of tensor q", skip, all));
  const std::vector<std::int64_t> lengths = kept_lengths(kept.problem);
  check_sequences(lengths);
  find_first_new(lengths, skip);
  final_lengths_ = lengths;
  for (std::int64_t row = first_new_; row < all; ++row) ++final_lengths_[size(sequences_[size(row)])];
}

void StepsFile::check_against(const kvstore::SnapshotManifest& kept) {
  const LayerTensors rows = check_layer_tensors(file_);
  has_retrieval_queries_ = rows.has_retrieval_queries;
  expect_shape(file_, file_.tensor("q"), {rows.rows, problem_.heads, problem_.head_dim});
  expect_shape(file_, file_.tensor("k"), {rows.rows, problem_.kv_heads, problem_.head_dim});
  if (rows.dtype != problem_.dtype) {
    fail_in(file_, fmt::format("tensor q has dtype {}, but the snapshot's layer has {}", name_of(rows.dtype),
                               name_of(problem_.dtype)));
  }
  expect_metadata(file_, "chunk_size", metadata_integer(file_, "chunk_size"), kept.problem.chunk_size);
  expect_metadata(file_, "landmark_slots", metadata_flag(file_, "landmark_slots"), kept.problem.landmark_slots);
  const std::optional<double> scale = metadata_real(file_, "scale");
  expect_metadata(file_, "scale", scale ? std::optional(static_cast<float>(*scale)) : std::nullopt, kept.problem.scale);
}

void StepsFile::check_sequences(const std::vector<std::int64_t>& lengths) const {
  for (std::size_t row = 0; row < sequences_.size(); ++row) {
    const std::int64_t sequence = sequences_[row];
    if (sequence >= 0 && sequence < static_cast<std::int64_t>(lengths.size())) continue;
    fail_in(file_, fmt::format("tensor sequence has {} at row {}; the snapshot's sequences are 0 to {}", sequence, row,
                               lengths.size() - 1));
  }
}

void StepsFile::find_first_new(const std::vector<std::int64_t>& lengths, std::int64_t skip) {
  first_new_ = skip;
  if (positions_.empty()) return;
  std::vector<std::int64_t> next = lengths;
  const auto is_kept = [&](std::int64_t row) { return positions_[size(row)] < lengths[size(sequences_[size(row)])]; };
  while (first_new_ < rows() && is_kept(first_new_)) ++first_new_;
  for (std::int64_t row = first_new_; row < rows(); ++row) {
    const std::int64_t sequence = sequences_[size(row)];
    const std::int64_t position = positions_[size(row)];
    if (position != next[size(sequence)]) {
      fail_in(file_, fmt::format("tensor position has {} at row {}, but the next of sequence {} is {}", position, row,
                                 sequence, next[size(sequence)]));
    }
    ++next[size(sequence)];
  }
}

LayerShard StepsFile::load(RowRange rows) const {
  LayerShard shard(problem_, rows.size(), has_retrieval_queries_);
  read_layer_rows(file_, {&rows, 1}, "row", has_retrieval_queries_, shard);
  return shard;
}

NewTokens StepsFile::new_tokens(RowRange rows, const LayerShard& loaded) const {
  const std::span<const std::int64_t> sequences = sequences_, ids = token_ids_;
  const std::size_t first = size(rows.begin), count = size(rows.size());
  return {sequences.subspan(first, count),
          loaded.queries(),
          loaded.retrieval_queries(),
          loaded.keys(),
          loaded.values(),
          ids.empty() ? ids : ids.subspan(first, count)};
}

std::uint32_t StepsFile::checksum(RowRange rows) const {
  std::uint32_t checksum = 0;
  std::vector<std::byte> bytes;
  for (const char* name : {"q", "k"}) {
    const StoredTensor& tensor = file_.tensor(name);
    const std::int64_t at_once = std::max<std::int64_t>(1, kReadAtOnce / tensor.row_bytes());
    for (std::int64_t begin = rows.begin; begin < rows.end; begin += at_once) {
      const RowRange part{begin, std::min(begin + at_once, rows.end)};
      bytes.resize(size(part.size() * tensor.row_bytes()));
      file_.read_rows(tensor, part, bytes);
      checksum = kvstore::crc32c(bytes, checksum);
    }
  }
  return checksum;
}

}  // namespace ringmark::runtime
