// What the facts of all ranks mean for a job: pure, so that every known cause can be put before them.
#pragma once

#include <span>

#include "cluster/doctor/doctor_options.h"
#include "cluster/doctor/finding.h"
#include "cluster/doctor/rank_facts.h"

namespace ringmark::cluster {

// Facts by rank; never empty.
using AllFacts = std::span<const RankFacts>;

// Which ranks are where, and how a host is made. One line for hosts that are alike.
Findings judge_hosts(AllFacts ranks);
// Everything that must be equal on all ranks.
Findings judge_versions(AllFacts ranks, const DoctorOptions& options);
// Threads against processors.
Findings judge_processors(AllFacts ranks);
// Limits of processes, /dev/shm and what was left there.
Findings judge_limits(AllFacts ranks, const DoctorOptions& options);
// By comm::assign_gpus, as the runtime does.
Findings judge_gpus(AllFacts ranks, const DoctorOptions& options);
// started: MPI has come up and the transports of the job have passed, in spite of its settings.
Findings judge_settings(AllFacts ranks, bool started);

// "0-3,8": of ascending numbers.
std::string ranges_text(std::span<const int> numbers);

}  // namespace ringmark::cluster
