// What every command that computes on the ranks of a job can be told.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cluster/options/option_group.h"
#include "cluster/options/option_layers.h"
#include "cluster/options/telemetry_options.h"
#include "comm/spill_arena.h"
#include "core/ids.h"
#include "kvstore/block_codec.h"

namespace ringmark::cluster {

struct RunOptions {
  std::optional<double> memory_gib;  // unset: free memory of the host over the ranks on it
  double deadline_seconds = 120;
  std::int64_t threads = 0;  // 0: as many as this process is bound to

  std::optional<std::int64_t> kv_budget_mib;  // unset: all blocks that peers read are in memory
  std::string spill_dir;                      // where what is over the budget goes

  std::string json;  // empty: none
  bool digest = false;
  std::string log_dir;  // empty: none
  bool quiet = false;
  TelemetryOptions telemetry;

  std::optional<std::int64_t> memory_bytes() const;
  std::optional<comm::SpillPolicy> spill() const;
};

void add_execution_options(OptionGroup& group);
void add_report_options(OptionGroup& group);
void read_run_options(const OptionValues& values, RunOptions& options);

// The name of --kv-dtype.
std::optional<kvstore::BlockFormat> read_block_format(const OptionValues& values);

// Throws Error(kBadInput) when the report or the first cause of a failure could not be written.
void check_run_files(const RunOptions& options, RankId rank);

}  // namespace ringmark::cluster
