#include "runtime/decode_output.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/error.h"
#include "kvstore/safetensors_file.h"
#include "runtime/agreement.h"
#include "runtime/layer_output.h"
#include "runtime/layer_tensors.h"

namespace ringmark::runtime {
namespace {

constexpr const char* kFirstRow = "first_row";
constexpr const char* kChecksum = "steps_checksum";

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace

DecodeOutput::DecodeOutput(std::string path, const AttentionProblem& problem, const AttentionPolicy& policy,
                           const StepsFile& steps)
    : path_(std::move(path)), problem_(problem), policy_(policy), steps_(steps), first_row_(steps.first_new()) {}

SharedFile DecodeOutput::describe(const std::string& path, std::int64_t end) const {
  SharedFile file{path, result_tensors(problem_, end - first_row_), policy_metadata(problem_, policy_)};
  file.metadata[kFirstRow] = std::to_string(first_row_);
  return file;
}

void DecodeOutput::check() const { check_shared_file(describe(path_, steps_.rows())); }

std::int64_t DecodeOutput::bytes() const {
  return (steps_.rows() - first_row_) * problem_.heads * (problem_.head_dim + 1) *
         static_cast<std::int64_t>(sizeof(float));
}

std::int64_t DecodeOutput::first_usable_row() const {
  const std::int64_t first_new = steps_.first_new();
  if (!std::filesystem::exists(partial_path())) return first_new;
  const kvstore::SafetensorsFile file(partial_path());
  const std::int64_t first = metadata_integer(file, kFirstRow).value_or(first_new);
  const std::int64_t end = first + file.tensor("o").shape.at(0);
  const bool covers = 0 <= first && first < first_new && first_new <= end && end <= steps_.rows();
  if (!covers || metadata_integer(file, kChecksum) != steps_.checksum({first, end})) return first_new;
  expect_shape(file, file.tensor("o"), {end - first, problem_.heads, problem_.head_dim});
  expect_shape(file, file.tensor("lse"), {end - first, problem_.heads});
  return first;
}

void DecodeOutput::resume(comm::Communicator& communicator) {
  std::int64_t usable = steps_.first_new();
  agree(communicator, "look for an earlier output", [&] {
    if (communicator.rank() == 0) usable = first_usable_row();
  });
  first_row_ = communicator.gather_sizes("share an earlier output", usable)[0];
  const std::int64_t rows = steps_.first_new() - first_row_;
  if (rows == 0) return;
  agree(communicator, "read an earlier output", [&] {
    const auto begin_of = [&](int rank) { return first_row_ + rows * rank / communicator.size(); };
    read_partial({begin_of(communicator.rank()), begin_of(communicator.rank() + 1)});
  });
}

void DecodeOutput::read_partial(RowRange rows) {
  const kvstore::SafetensorsFile file(partial_path());
  runs_.push_back(rows);
  out_.resize(size(rows.size() * problem_.heads * problem_.head_dim));
  lse_.resize(size(rows.size() * problem_.heads));
  const RowRange stored{rows.begin - first_row_, rows.end - first_row_};
  file.read_rows(file.tensor("o"), stored, std::as_writable_bytes(std::span(out_)));
  file.read_rows(file.tensor("lse"), stored, std::as_writable_bytes(std::span(lse_)));
}

void DecodeOutput::add(std::int64_t first_row, const DecodeStep& step) {
  for (const std::int64_t row : step.rows) {
    const std::int64_t at = first_row + row;
    if (runs_.empty() || runs_.back().end != at) runs_.push_back({at, at});
    ++runs_.back().end;
  }
  out_.insert(out_.end(), step.out.begin(), step.out.end());
  lse_.insert(lse_.end(), step.lse.begin(), step.lse.end());
}

void DecodeOutput::write_rows(comm::Communicator& communicator, const SharedFile& file) const {
  std::vector<RowRange> runs;
  for (const RowRange& run : runs_) runs.push_back({run.begin - first_row_, run.end - first_row_});
  const std::array rows = {OwnRows{"o", runs, std::as_bytes(std::span(out_))},
                           OwnRows{"lse", runs, std::as_bytes(std::span(lse_))}};
  write_shared_file(communicator, file, rows);
}

void DecodeOutput::write_partial(comm::Communicator& communicator, std::int64_t end) const {
  SharedFile file = describe(partial_path(), end);
  agree(communicator, "name the steps", [&] {
    if (communicator.rank() == 0) file.metadata[kChecksum] = std::to_string(steps_.checksum({first_row_, end}));
  });
  write_rows(communicator, file);
}

void DecodeOutput::write(comm::Communicator& communicator) const {
  write_rows(communicator, describe(path_, steps_.rows()));
  if (communicator.rank() != 0) return;
  std::error_code ignored;  // what stays belongs to other rows than those that come next
  std::filesystem::remove(partial_path(), ignored);
}

}  // namespace ringmark::runtime
