// Which block transports work between these ranks: each goes through comm::choose_transport, as in a job.
#pragma once

#include "cluster/doctor/doctor_options.h"
#include "cluster/doctor/finding.h"
#include "comm/communicator.h"

namespace ringmark::cluster {

// Collective; the same findings on every rank. Those of host memory, and those of GPU memory with the cuda backend.
// Throws Error(kPeer) when ranks lose each other.
Findings probe_transports(comm::Communicator& ranks, const DoctorOptions& options);

// The same for GPU memory, which makes the rank's GPU current. Only builds with CUDA have it; elsewhere one FAIL.
Findings probe_gpu_transports(comm::Communicator& ranks, const DoctorOptions& options);

}  // namespace ringmark::cluster
