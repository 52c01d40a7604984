// What one rank finds where it runs, before anybody judges it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cluster/doctor/doctor_options.h"
#include "cluster/launch/network_interfaces.h"

namespace ringmark::cluster {

struct FoundSetting {
  std::string name;  // in the table of launch_settings.h
  std::string found;
};

struct RankFacts {
  std::string host;
  std::map<std::string, std::string> versions;  // by product, "ringmark" and "binary" (a hash of it) among them
  int cpus = 1;                                 // of the host
  std::vector<int> bound_cpus;                  // that this process may use
  int threads = 1;                              // that a job would start
  std::int64_t memory = 0;                      // bytes that can still be had
  std::uint64_t locked_memory = 0;              // bytes, RLIMIT_MEMLOCK
  std::uint64_t open_files = 0;                 // RLIMIT_NOFILE
  std::uint64_t core_bytes = 0;                 // RLIMIT_CORE
  std::string core_pattern;
  std::int64_t shared_bytes = 0;  // size of /dev/shm; 0: there is none
  std::int64_t shared_free = 0;
  std::vector<std::string> leftovers;  // files in /dev/shm that nobody uses
  bool rdma = false;
  std::vector<NetworkInterface> interfaces;
  std::vector<FoundSetting> settings;
  std::string topology;

  std::vector<std::string> gpus;       // UUIDs, by CUDA's numbers
  std::vector<std::string> gpu_names;  // the same, as text for people
  std::string gpu_trouble;             // why there are none
  std::string visible_devices;         // CUDA_VISIBLE_DEVICES as set, "unset" otherwise
  bool mpirun_in_slurm = false;        // mpirun, inside a Slurm job, started this rank
};

// Before MPI is initialised: it adds to the environment. host_ranks: ranks on this host.
RankFacts find_rank_facts(const DoctorOptions& options, int host_ranks);

// For the way to rank 0.
std::string to_text(const RankFacts& facts);
RankFacts from_text(const std::string& text);

}  // namespace ringmark::cluster
