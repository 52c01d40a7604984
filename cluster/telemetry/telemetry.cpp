#include "cluster/telemetry/telemetry.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <utility>

#include "cluster/options/text_file.h"
#include "cluster/telemetry/trace_file.h"
#include "cluster/telemetry/wait_fields.h"
#include "comm/current_wait.h"
#include "comm/received_bytes.h"
#include "runtime/agreement.h"
#include "runtime/traced_transport.h"

namespace ringmark::cluster {
namespace {

constexpr double kMetricsSeconds = 2;         // between two versions of the metrics
constexpr double kLongestSleepSeconds = 0.5;  // of the reporter

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string utc_text(double seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}Z", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// A size of /proc/self/status, which is in kB.
std::int64_t own_memory(std::string_view key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(key.size())) * 1024;
  }
  return 0;
}

EventFields totals_fields(const StageTotals& totals) {
  return {{"stage", totals.stage},
          {"lane", totals.lane},
          {"seconds", totals.seconds},
          {"received_bytes", totals.received_bytes},
          {"spans", totals.spans}};
}

}  // namespace

Telemetry::Telemetry(const RunOptions& options, std::string command, std::string policy)
    : options_(options), command_(std::move(command)), policy_(std::move(policy)), host_(host_name()) {
  trace_.observe_by(this);
  trace_.keep(!options.telemetry.trace.empty());
}

Telemetry::~Telemetry() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (reporter_.joinable()) reporter_.join();
}

void Telemetry::start(comm::Communicator& ranks) {
  rank_ = ranks.rank();
  ranks_ = ranks.size();
  start_time_ = wall_seconds();
  began_ = steady_seconds();
  runtime::agree(ranks, "check the outputs", [&] { check_run_files(options_, RankId(rank_)); });
  runtime::agree(ranks, "open the log", [&] { open_files(rank_); });
  hosts_ = ranks.gather_texts("name the hosts", host_);
  layer_.emplace(options_.telemetry.layer);
  EventFields fields = {{"version", RINGMARK_VERSION},
                        {"command", command_},
                        {"policy", policy_},
                        {"ranks", ranks_},
                        {"host_ranks", ranks.host_ranks()},
                        {"layer", options_.telemetry.layer},
                        {"options", options_.telemetry.given}};
  if (rank_ == 0) fields["hosts"] = hosts_;
  event(LogLevel::kInfo, "job_start", fields);
  if (!options_.telemetry.trace.empty()) clock_.begin = measure_offset(ranks, runtime::Trace::now_us);
  reporter_ = std::thread([this] { report_until_stopped(); });
}

void Telemetry::open_files(int rank) {
  const TelemetryOptions& asked = options_.telemetry;
  if (!asked.metrics_file.empty()) check_text_file(metrics_path(asked.metrics_file, rank));
  const bool in_folder = !options_.log_dir.empty();
  LogTarget target;
  target.format = asked.log_format.value_or(in_folder ? LogFormat::kJson : LogFormat::kText);
  target.level = asked.log_level.value_or(in_folder || asked.log_format ? LogLevel::kInfo : LogLevel::kOff);
  if (in_folder) target.path = fmt::format("{}/{}", options_.log_dir, log_name(target.format, rank));
  target.rank = rank;
  target.host = host_;
  if (target.level == LogLevel::kOff) return;
  const std::lock_guard lock(log_mutex_);
  log_ = std::make_unique<EventLog>(target);
}

void Telemetry::finish(comm::Communicator& ranks) {
  if (options_.telemetry.trace.empty()) return;
  clock_.end = measure_offset(ranks, runtime::Trace::now_us);
  write_trace(ranks, trace_, clock_, process_name(), RINGMARK_VERSION, options_.telemetry.trace);
}

comm::ChosenTransport Telemetry::observe(comm::ChosenTransport chosen) {
  if (chosen.transport == nullptr) return chosen;
  event(LogLevel::kInfo, "transport", {{"transport", chosen.transport->name()}, {"why", chosen.why}});
  if (!options_.telemetry.trace.empty()) {
    chosen.transport = std::make_unique<runtime::TracedTransport>(std::move(chosen.transport), rank_, trace_);
  }
  return chosen;
}

void Telemetry::compute_on(const std::string& device, const std::string& why) {
  device_ = device;
  event(LogLevel::kInfo, "device", {{"device", device}, {"why", why}});
}

std::string Telemetry::process_name() const {
  return fmt::format("rank {} @ {}{}{}", rank_, host_, device_.empty() ? "" : " ", device_);
}

void Telemetry::event(LogLevel level, std::string_view name, const EventFields& fields) {
  const std::lock_guard lock(log_mutex_);
  if (log_) log_->write(level, name, fields);
}

void Telemetry::told(std::string_view signal) {
  EventFields fields = {{"signal", signal}};
  const auto wait = comm::CurrentWait::latest();
  fields.update(wait ? wait_fields(*wait) : step_fields(comm::latest_step()));
  event(LogLevel::kWarning, "signal", fields);
}

void Telemetry::failed(ExitCode code, const std::string& text) {
  EventFields fields = {{"exit_code", static_cast<int>(code)},
                        {"error", text.empty() ? "another rank tells the cause" : text}};
  const auto wait = comm::CurrentWait::ended_last();
  if (code == ExitCode::kPeer && wait) fields.update(wait_fields(*wait));
  event(code == ExitCode::kRequeue ? LogLevel::kWarning : LogLevel::kError,
        code == ExitCode::kRequeue ? "checkpointed" : "failure", fields);
}

void Telemetry::ended(int exit_code) {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (reporter_.joinable()) reporter_.join();
  if (ranks_ == 0 || start_time_ == 0) return;  // it never started
  for (const StageTotals& totals : state_.totals()) event(LogLevel::kInfo, "stage_total", totals_fields(totals));
  event(LogLevel::kInfo, "job_end",
        {{"exit_code", exit_code},
         {"seconds", steady_seconds() - began_},
         {"received_bytes", comm::ReceivedBytes::total()},
         {"wait_seconds", comm::CurrentWait::total_seconds()},
         {"peak_memory_bytes", own_memory("VmHWM:")}});
  write_metrics(exit_code);
  const std::lock_guard lock(log_mutex_);
  log_.reset();
}

// The first span of a stage is worth a line; later ones are waves and steps of the same.
void Telemetry::stage_began(std::string_view stage) {
  const LogLevel level = state_.begin(stage) ? LogLevel::kInfo : LogLevel::kDebug;
  const std::lock_guard lock(log_mutex_);
  if (log_ && log_->takes(level)) log_->write(level, "stage_begin", step_fields(comm::current_step()));
}

void Telemetry::stage_ended(std::string_view stage, std::string_view lane, double seconds) {
  StageTotals span;
  const LogLevel level = state_.end(stage, lane, seconds, span) ? LogLevel::kInfo : LogLevel::kDebug;
  const std::lock_guard lock(log_mutex_);
  if (!log_ || !log_->takes(level)) return;
  comm::Step step = comm::current_step();
  step.stage = stage;
  EventFields fields = step_fields(step);
  fields.update({{"lane", lane}, {"seconds", span.seconds}, {"received_bytes", span.received_bytes}});
  log_->write(level, "stage_end", fields);
}

void Telemetry::report_until_stopped() {
  const double threshold = ranks_ > 1 ? options_.telemetry.hang_threshold(options_.deadline_seconds) : 0;
  const double sleep = threshold > 0 ? std::clamp(threshold / 4, 0.05, kLongestSleepSeconds) : kLongestSleepSeconds;
  HangWatch watch(threshold, [this](const HangWatch::Report& report) { tell_of_wait(report); });
  double next_metrics = 0;
  std::unique_lock lock(mutex_);
  do {
    lock.unlock();
    if (threshold > 0) watch.look(comm::CurrentWait::latest());
    if (steady_seconds() >= next_metrics) {
      write_metrics(std::nullopt);
      next_metrics = steady_seconds() + kMetricsSeconds;
      const std::lock_guard log_lock(log_mutex_);
      if (log_) log_->flush();
    }
    lock.lock();
  } while (!changed_.wait_for(lock, std::chrono::duration<double>(sleep), [this] { return stopped_; }));
}

void Telemetry::tell_of_wait(const HangWatch::Report& report) {
  EventFields fields = wait_fields(report.wait);
  std::vector<std::string> peers;
  for (const int peer : report.wait.peers) {
    const std::string& host = hosts_[static_cast<std::size_t>(peer)];
    fields["peer_hosts"].push_back(host);
    peers.push_back(fmt::format("{} @ {}", peer, host));
  }
  fields["since"] = utc_text(wall_seconds() - report.wait.seconds);
  event(LogLevel::kWarning, report.is_over ? "hang_over" : "hang", fields);
  if (options_.log_dir.empty()) {
    if (report.is_over) return;
    const std::string place = comm::words_of(report.wait.step);
    fmt::print(stderr, "ringmark: rank {} @ {} waits {:.1f} s already in '{}'{} for {}\n", rank_, host_,
               report.wait.seconds, report.wait.stage, place.empty() ? "" : fmt::format(" ({})", place),
               peers.empty() ? "other ranks, inside MPI" : fmt::format("rank {}", fmt::join(peers, ", rank ")));
    return;
  }
  EventFields file = {{"rank", rank_}, {"host", host_}, {"over", report.is_over}, {"reports", ++wait_reports_}};
  file.update(fields);
  const std::lock_guard lock(file_mutex_);
  try {
    write_text_file(fmt::format("{}/hang.{}.json", options_.log_dir, rank_), file.dump() + "\n");
  } catch (const Error& error) {
    event(LogLevel::kWarning, "cannot_write", {{"error", error.what()}});
  }
}

void Telemetry::write_metrics(std::optional<int> exit_code) {
  if (options_.telemetry.metrics_file.empty()) return;
  RunMetrics run;
  run.rank = rank_;
  run.ranks = ranks_;
  run.version = RINGMARK_VERSION;
  run.command = command_;
  run.policy = policy_;
  run.host = host_;
  run.start_time = start_time_;
  run.update_time = wall_seconds();
  run.stages = state_.totals();
  run.progress = state_.progress();
  run.received_bytes = comm::ReceivedBytes::total();
  run.wait_seconds = comm::CurrentWait::total_seconds();
  if (const auto wait = comm::CurrentWait::latest()) run.current_wait_seconds = wait->seconds;
  run.resident_bytes = own_memory("VmRSS:");
  run.peak_bytes = own_memory("VmHWM:");
  run.exit_code = exit_code;
  const std::lock_guard lock(file_mutex_);
  try {
    write_text_file(metrics_path(options_.telemetry.metrics_file, rank_), metrics_text(run));
  } catch (const Error& error) {
    event(LogLevel::kWarning, "cannot_write", {{"error", error.what()}});
  }
}

}  // namespace ringmark::cluster
