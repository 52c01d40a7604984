// What is known of a point: one object of the schema in docs/scaling.md, a file a point and a line of results.jsonl.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cluster/scaling/statistics.h"
#include "cluster/scaling/study.h"

namespace ringmark::cluster {

// One launch that ended well; figures are those of the run's report (docs/report.md), maxima over its ranks.
struct RunRecord {
  std::map<std::string, double> seconds;  // by stage, total too
  double wall_seconds = 0;                // of the launcher, start and end of the job included
  std::int64_t bytes_moved = 0;           // received by all ranks for attention, whatever they were
  std::int64_t bytes_ring = 0;            // what a ring that passes all K and V would receive
  std::int64_t peak_memory_bytes = 0;     // of the largest rank
  std::string selection_digest;           // empty for an arm that chooses nothing
  std::int64_t needles_planted = 0;
  std::int64_t needles_recovered = 0;

  // Of attention, from the moment that the slowest rank has its input: total without load and write.
  double attention_seconds() const;
};

// Throws Error(kBadInput) naming `path` and the field when the text is no report of a prefill.
RunRecord parse_report(const std::string& text, const std::string& path);

struct PointFailure {
  std::string kind;  // exit, signal, timeout, report, check, launch, interrupted
  std::string text;  // one line: the cause
  int launch = -1;   // which of the attempt's launches; -1: none, or nobody knows
  std::optional<int> exit_code;
  std::optional<int> signal;
  std::vector<std::string> details;  // what ranks, launcher and Slurm said, a line each
};

struct PointResult {
  StudyPoint point;
  int ranks = 1;
  int attempt = 0;
  std::string began;  // UTC, ISO 8601
  std::string ended;
  std::vector<RunRecord> runs;  // that count: without warm-up and traced ones
  std::optional<PointFailure> failure;
  nlohmann::ordered_json environment;

  bool done() const { return !failure.has_value(); }
  // Of done points.
  Spread seconds() const;                        // attention_seconds of the runs
  std::map<std::string, double> stages() const;  // median over the runs
  std::int64_t bytes_moved() const { return runs.front().bytes_moved; }
  std::int64_t bytes_ring() const { return runs.front().bytes_ring; }
};

nlohmann::ordered_json result_json(const PointResult& result);
// Throws Error(kBadInput) naming `origin` (a path, or path and line) and the field.
PointResult parse_result(const std::string& text, const std::string& origin);

}  // namespace ringmark::cluster
