// The frame around a command that runs on all ranks: joins the MPI job (or stays alone without one), and turns the
// first error of any rank into one line, a file for batch logs, and the exit code of the job.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "comm/communicator.h"

namespace ringmark::cluster {

struct JobOptions {
  std::chrono::duration<double> timeout = std::chrono::seconds(120);
  std::string log_dir;  // where a failing rank leaves error.<rank>.json; empty: nowhere
};

// True when this process was started as one of several ranks, by mpirun or srun.
bool launched_as_job();

// Returns the exit code of this process. An error that all ranks agreed on ends the job in order; any other ends it by
// abort, since peers may be waiting.
int run_job(const JobOptions& options, const std::function<void(comm::Communicator&)>& body);

}  // namespace ringmark::cluster
