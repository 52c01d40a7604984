#include "cluster/scaling/run_environment.h"

#include <mpi.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

extern char** environ;

namespace ringmark::cluster {
namespace {

// Settings of MPI, UCX, NCCL and ours; of Slurm what tells the job apart.
constexpr std::array<std::string_view, 7> kPrefixes = {"OMPI_MCA_", "UCX_",     "NCCL_",    "RINGMARK_",
                                                       "PMIX_MCA_", "OMP_NUM_", "PRTE_MCA_"};
constexpr std::array kSlurm = {"SLURM_JOB_ID",        "SLURM_ARRAY_JOB_ID",  "SLURM_ARRAY_TASK_ID",
                               "SLURM_JOB_NODELIST",  "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION",
                               "SLURM_RESTART_COUNT", "CUDA_VISIBLE_DEVICES"};

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);  // allowed before MPI is begun
  const std::string version = text.data();
  return version.substr(0, version.find_first_of(",\n"));
}

nlohmann::ordered_json variables() {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    for (const std::string_view prefix : kPrefixes) {
      if (text.starts_with(prefix)) json[std::string(text.substr(0, text.find('=')))] = text.substr(text.find('=') + 1);
    }
  }
  for (const char* name : kSlurm) {
    if (const char* const value = std::getenv(name)) json[name] = value;
  }
  return json;
}

}  // namespace

nlohmann::ordered_json run_environment(const Launch& launch, const PointLaunch& started) {
  nlohmann::ordered_json json = {{"ringmark", RINGMARK_VERSION},
                                 {"mpi", mpi_version()},
                                 {"launched_from", host_name()},
                                 {"launched_by", launch.by == Launch::By::kSrun ? "srun" : "mpirun"},
                                 {"processors_there", std::thread::hardware_concurrency()},
                                 {"hosts", started.hosts},
                                 {"variables", variables()}};
  if (started.hosts.empty())
    json["hosts_note"] = "chosen by the launcher; without a host list one machine is all nodes";
  return json;
}

}  // namespace ringmark::cluster
