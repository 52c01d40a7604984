// The frame around a command that runs on all ranks: joins the MPI job (or stays alone without one), and turns the
// first error of any rank into one line, a file for batch logs, and the exit code of the job.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "cluster/job/termination.h"
#include "cluster/launch/launch_facts.h"
#include "cluster/options/run_options.h"
#include "cluster/options/transport_name.h"
#include "cluster/telemetry/telemetry.h"
#include "comm/communicator.h"
#include "core/error.h"
#include "kernels/backend.h"

namespace ringmark::cluster {

struct JobOptions {
  std::chrono::duration<double> timeout = std::chrono::seconds(120);
  std::string log_dir;  // where a rank leaves error.RANK.json when it fails, signal.RANK.json when told to end
  LaunchUse use;        // which settings of the environment matter
  bool quiet = false;   // no warnings of such settings
  Telemetry* telemetry = nullptr;  // is told how the job ends; may be null
};

JobOptions job_options(const RunOptions& options, kernels::Backend backend, TransportName transport,
                       Telemetry& telemetry);

// True when this process was started as one of several ranks, by mpirun or srun.
bool launched_as_job();

// What every rank runs. A body that can write a checkpoint calls accept_requests() and looks at asked().
using JobBody = std::function<void(comm::Communicator&, Termination&)>;

// Returns the exit code of this process. An error that all ranks agreed on ends the job in order; any other ends it by
// abort, since peers may be waiting.
int run_job(const JobOptions& options, const JobBody& body);

// The end of a job whose options are wrong: all ranks were given the same, one of them says so. Throws `error` where
// there is no job.
int refuse_options(const Error& error);

}  // namespace ringmark::cluster
