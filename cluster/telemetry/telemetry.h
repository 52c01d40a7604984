// What a rank writes down about its run while it goes on (docs/observability.md): its log, its metrics, reports of
// waits that do not end, and its part of the trace. Commands make one before they join their job, hand it to run_job,
// and give its trace to the engines; these know nothing of it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cluster/options/run_options.h"
#include "cluster/telemetry/clock_alignment.h"
#include "cluster/telemetry/event_log.h"
#include "cluster/telemetry/hang_watch.h"
#include "cluster/telemetry/metrics_text.h"
#include "cluster/telemetry/run_state.h"
#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "comm/current_step.h"
#include "core/error.h"
#include "runtime/trace.h"

namespace ringmark::cluster {

class Telemetry final : private runtime::StageObserver {
 public:
  // `options` outlive this. `policy` is empty where the command has none.
  Telemetry(const RunOptions& options, std::string command, std::string policy);
  ~Telemetry() override;
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  // Collective, before any work; on the thread that will work. Files that cannot be written are Error(kBadInput) on all
  // ranks.
  void start(comm::Communicator& ranks);
  // Collective: writes the trace of a run that has succeeded.
  void finish(comm::Communicator& ranks);

  // Spans go there. It observes stages; it keeps them only for a trace that is asked for.
  runtime::Trace& trace() { return trace_; }
  RunState& state() { return state_; }
  // The same transport, whose reads go to the trace. Says in the log what was chosen and why.
  comm::ChosenTransport observe(comm::ChosenTransport chosen);
  // `device` as it stands behind the host in the trace: "GPU 1"; `why` one line.
  void compute_on(const std::string& device, const std::string& why);

  // From any thread; nothing before start().
  void event(LogLevel level, std::string_view name, const EventFields& fields);
  // The signal as "SIGTERM".
  void told(std::string_view signal);
  // The first cause of a failure of this rank; empty: another rank says it.
  void failed(ExitCode code, const std::string& text);
  // The last call: nothing is written after it.
  void ended(int exit_code);

 private:
  void stage_began(std::string_view stage) override;
  void stage_ended(std::string_view stage, std::string_view lane, double seconds) override;

  void open_files(int rank);
  void report_until_stopped();
  void tell_of_wait(const HangWatch::Report& report);
  void write_metrics(std::optional<int> exit_code);
  std::string process_name() const;

  const RunOptions& options_;
  std::string command_, policy_, host_, device_;
  int rank_ = 0;
  int ranks_ = 1;
  std::vector<std::string> hosts_;  // by rank
  double start_time_ = 0;           // seconds since 1970
  double began_ = 0;                // seconds of the steady clock
  runtime::Trace trace_;
  RunState state_;
  ClockAlignment clock_;
  std::optional<comm::EnterLayer> layer_;

  std::mutex log_mutex_;
  std::unique_ptr<EventLog> log_;  // null: none
  std::mutex file_mutex_;          // metrics and reports of waits
  int wait_reports_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::thread reporter_;
};

}  // namespace ringmark::cluster
