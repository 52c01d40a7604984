// What a decode run says about itself: one table on rank 0, and the same fields as JSON. Field names are an interface
// (docs/report.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cluster/decode/decode_backend.h"
#include "cluster/job/stage_seconds.h"
#include "core/problem.h"
#include "kvstore/block_codec.h"
#include "runtime/decode.h"

namespace ringmark::cluster {

struct DecodeReport {
  AttentionProblem problem;  // what is kept when the run ends
  AttentionPolicy policy;
  kvstore::BlockFormat format = kvstore::BlockFormat::kAsInput;
  std::string snapshot;  // folder
  std::uint64_t generation_opened = 0;
  std::optional<std::uint64_t> generation_saved;
  std::int64_t sequences = 1;
  std::int64_t rows_of_file = 0;
  std::int64_t rows_skipped = 0;  // kept already, or left out
  std::int64_t rows_decoded = 0;
  std::int64_t steps = 0;
  int ranks = 1;
  int threads = 1;
  std::string backend;
  DecodeBackendReport of_backend;
  std::uint64_t selection_digest = 0;  // of the rows decoded; digests of runs in sequence add up
  StageSeconds seconds;                // by stage, max over ranks
  double decode_seconds = 0.0;         // of all steps, max over ranks
  runtime::DecodeTraffic traffic;      // all ranks
  std::int64_t peak_memory_bytes = 0;  // max over ranks
};

std::string report_table(const DecodeReport& report);
std::string report_json(const DecodeReport& report);

}  // namespace ringmark::cluster
