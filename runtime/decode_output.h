// The results of a decode as a safetensors file: o [rows, H, d] and lse [rows, H] F32, the rows of the steps file from
// metadata `first_row` on. A job that is checkpointed leaves what it has in PATH.partial; the next one, of the same
// steps, goes on from there, so that the file is the one of an undisturbed run. Described in docs/formats.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/ids.h"
#include "core/problem.h"
#include "runtime/decode.h"
#include "runtime/shared_output.h"
#include "runtime/steps_file.h"

namespace ringmark::runtime {

class DecodeOutput {
 public:
  // The arguments outlive the output.
  DecodeOutput(std::string path, const AttentionProblem& problem, const AttentionPolicy& policy,
               const StepsFile& steps);

  // Throws Error when the file could not be written as things stand. Leaves nothing behind.
  void check() const;
  // Bytes of the results that all ranks together hold until they are written.
  std::int64_t bytes() const;

  // Collective: takes over what an earlier job has left, if it belongs to these steps.
  void resume(comm::Communicator& communicator);
  // A step whose first row is `first_row` of the file.
  void add(std::int64_t first_row, const DecodeStep& step);
  // Collective: rows before `end`.
  void write_partial(comm::Communicator& communicator, std::int64_t end) const;
  // Collective: all rows. The partial file goes.
  void write(comm::Communicator& communicator) const;

 private:
  std::string partial_path() const { return path_ + ".partial"; }
  // The first row that the partial file has; the first new one when it does not belong here.
  std::int64_t first_usable_row() const;
  void read_partial(RowRange rows);
  SharedFile describe(const std::string& path, std::int64_t end) const;
  void write_rows(comm::Communicator& communicator, const SharedFile& file) const;

  std::string path_;
  const AttentionProblem& problem_;
  const AttentionPolicy& policy_;
  const StepsFile& steps_;
  std::int64_t first_row_;
  std::vector<RowRange> runs_;  // of the steps file, that this rank has
  std::vector<float> out_;
  std::vector<float> lse_;
};

}  // namespace ringmark::runtime
