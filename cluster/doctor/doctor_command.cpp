#include "cluster/doctor/doctor_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "cluster/doctor/doctor_options.h"
#include "cluster/doctor/finding.h"
#include "cluster/doctor/judge.h"
#include "cluster/doctor/probe_network.h"
#include "cluster/doctor/probe_transports.h"
#include "cluster/doctor/rank_facts.h"
#include "cluster/doctor/supervised_run.h"
#include "cluster/job/job.h"
#include "cluster/launch/launch_facts.h"
#include "cluster/launch/launch_settings.h"
#include "cluster/options/text_file.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFails = static_cast<int>(ExitCode::kEnvironment);
// Beside the waits for other ranks, each of which has the deadline: probes of transports with limits of their own.
constexpr double kProbeSeconds = 60;

// By the launcher's word: without PMI every task is rank 0 to MPI, and one of them speaks.
int task_number() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(variable)) return std::atoi(rank);
  }
  return 0;
}

void write_json(const DoctorOptions& options, AllFacts ranks, const Findings& findings) {
  if (options.json.empty()) return;
  Json json = {{"schema", "ringmark.doctor.1"},
               {"version", RINGMARK_VERSION},
               {"would_run", !would_fail(findings)},
               {"findings", findings_json(findings)},
               {"ranks", Json::array()}};
  for (const RankFacts& facts : ranks) json["ranks"].push_back(Json::parse(to_text(facts)));
  write_text_file(options.json, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Finding launch_finding(AllFacts ranks) {
  const char* tasks = std::getenv("SLURM_NTASKS");
  if (!launched_as_job()) return {Level::kInfo, "launch", "one process, started by neither mpirun nor srun", ""};
  const bool other_count = tasks != nullptr && std::atoi(tasks) != static_cast<int>(ranks.size());
  return {Level::kPass, "launch",
          fmt::format("{} rank{} met by MPI{}", ranks.size(), ranks.size() == 1 ? "" : "s",
                      other_count ? fmt::format("; SLURM_NTASKS is {}", tasks) : ""),
          ""};
}

class Doctor {
 public:
  Doctor(const DoctorOptions& options, const RankFacts& mine, comm::Communicator& ranks)
      : options_(options), mine_(mine), ranks_(ranks) {}

  // The same on every rank: whether a job would fail. Rank 0 has printed why.
  bool run() {
    for (const std::string& text : ranks_.gather_texts("gather facts", to_text(mine_))) all_.push_back(from_text(text));
    std::vector<std::string> hosts;
    for (const RankFacts& facts : all_) hosts.push_back(facts.host);
    say({launch_finding(all_)});
    say(judge_hosts(all_));
    say(judge_versions(all_, options_));
    say(judge_processors(all_));
    say(judge_limits(all_, options_));
    say(judge_gpus(all_, options_));
    say(probe_reachability(ranks_, hosts, mine_.interfaces));
    say(probe_clocks(ranks_, hosts));
    const Findings transports = probe_transports(ranks_, options_);
    say(transports);
    say(judge_settings(all_, !would_fail(transports)));
    end();
    return would_fail(findings_);
  }

  // Ranks have lost each other: what is known stands, and this.
  void lose(const Error& error) {
    say({{Level::kFail, "transport", error.what(), "look at the network between the hosts, and at the settings"}});
    say(judge_settings(all_, false));
    end();
  }

 private:
  void say(Findings findings) {
    if (ranks_.rank() == 0) print_findings(findings);
    append(findings_, std::move(findings));
  }
  void end() {
    if (ranks_.rank() != 0) return;
    print_summary(findings_);
    write_json(options_, all_, findings_);
  }

  const DoctorOptions& options_;
  const RankFacts& mine_;
  comm::Communicator& ranks_;
  std::vector<RankFacts> all_;
  Findings findings_;
};

// In the child. Throws nothing that has not been reported.
int examine(const DoctorOptions& options, const RunReport& report) {
  // Before MPI: it adds to the environment.
  const RankFacts mine = find_rank_facts(options, find_launch_facts({}).host_ranks);
  bool fails = false;
  try {
    const int code = run_job(
        {.timeout = std::chrono::duration<double>(options.deadline_seconds), .log_dir = {}, .use = {}, .quiet = true},
        [&](comm::Communicator& ranks, Termination&) {
          Doctor doctor(options, mine, ranks);
          try {
            fails = doctor.run();
          } catch (const Error& error) {
            if (error.code() == ExitCode::kPeer) doctor.lose(error);
            report.complete();
            throw Error(error.code() == ExitCode::kPeer ? ExitCode::kEnvironment : error.code(), error.what());
          }
          report.complete();
        });
    return code != 0 ? code : fails ? kFails : 0;
  } catch (const Error& error) {
    report.fail(error.what());
    return static_cast<int>(error.code());
  }
}

std::string fix_of_launch() {
  if (std::getenv("SLURM_JOB_ID") != nullptr && std::getenv("PMIX_RANK") == nullptr) {
    return "srun --mpi=pmix ringmark ..., or mpirun ringmark ...";
  }
  return "look at the settings below and at MPI's words on stderr";
}

// MPI did not come up, or ended this rank: what one process can find out alone.
int say_alone(const DoctorOptions& options, const SupervisedEnd& end) {
  const int task = task_number();
  Findings findings{{Level::kFail, "launch", fmt::format("task {}: {}", task, end.words), fix_of_launch()}};
  const RankFacts mine = find_rank_facts(options, find_launch_facts({}).host_ranks);
  const AllFacts alone(&mine, 1);
  if (task == 0) {
    append(findings, judge_hosts(alone));
    append(findings, judge_versions(alone, options));
    append(findings, judge_limits(alone, options));
  }
  for (Finding& finding : judge_settings(alone, false)) {
    if (task == 0 || finding.level == Level::kFail) findings.push_back(std::move(finding));
  }
  print_findings(findings);
  if (task != 0) return kFails;
  print_summary(findings);
  write_json(options, alone, findings);
  return kFails;
}

int print_settings() {
  for (const LaunchSetting& setting : launch_settings()) {
    fmt::print("{:<30} {}\n{:<30} {}\n{:<30} fix: {}\n", setting.name, setting.wanted, "", setting.why, "",
               setting.fix);
  }
  return 0;
}

}  // namespace

int run_doctor(const std::vector<std::string>& arguments, const Environment& environment) {
  const DoctorOptions options = parse_doctor_options(arguments, environment);
  if (options.settings) return print_settings();
  if (!options.json.empty() && task_number() == 0) check_text_file(options.json);
  const SupervisedEnd end = run_supervised([&](const RunReport& report) { return examine(options, report); },
                                           std::chrono::duration<double>(2 * options.deadline_seconds + kProbeSeconds));
  return end.complete ? end.exit_code : say_alone(options, end);
}

}  // namespace ringmark::cluster
