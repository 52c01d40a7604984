#include "comm/mpi_session.h"

#include <fmt/format.h>
#include <mpi.h>

#include <cstdlib>
#include <exception>

#include "comm/uncancellable_wait.h"
#include "core/error.h"

namespace ringmark::comm {

void refuse_split_launch(int world_size, const char* slurm_ntasks, bool under_mpirun) {
  if (world_size != 1 || under_mpirun || slurm_ntasks == nullptr) return;
  const long tasks = std::strtol(slurm_ntasks, nullptr, 10);
  if (tasks <= 1) return;
  fail_environment(
      fmt::format("SLURM_NTASKS is {} but the MPI world has {} rank: start the job with mpirun or srun --mpi=pmix",
                  tasks, world_size));
}

void refuse_step_without_pmi(const char* step_tasks, bool has_pmi) {
  if (has_pmi || step_tasks == nullptr) return;
  const long tasks = std::strtol(step_tasks, nullptr, 10);
  if (tasks <= 1) return;
  fail_environment(
      fmt::format("srun started {} tasks without PMIx, and each would be an MPI world of 1 rank: start the job with "
                  "srun --mpi=pmix",
                  tasks));
}

int launched_rank() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(variable)) return std::atoi(rank);
  }
  return 0;
}

MpiSession::MpiSession(std::chrono::duration<double> timeout) : exceptions_at_start_(std::uncaught_exceptions()) {
  const bool has_pmi = std::getenv("PMIX_RANK") != nullptr || std::getenv("PMI_RANK") != nullptr ||
                       std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  refuse_step_without_pmi(std::getenv("SLURM_STEP_NUM_TASKS"), has_pmi);
  folder_.emplace(timeout);
  // Help texts are printed here, not gathered by mpirun: that of Open MPI 4.1 crashes now and then when a text reaches
  // it while it ends the job, and its exit code is then 139.
  setenv("OMPI_MCA_orte_base_help_aggregate", "0", 0);
  int granted = 0;  // whoever needs a level asks MPI for it
  const int code = [&] {
    const UncancellableWait wait(launched_rank(), "join the job", timeout);
    return MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted);
  }();
  if (code != MPI_SUCCESS) fail_environment("MPI_Init_thread failed");
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  try {
    refuse_split_launch(size_, std::getenv("SLURM_NTASKS"), std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr);
  } catch (...) {
    MPI_Finalize();
    throw;
  }
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > exceptions_at_start_) return;
  MPI_Finalize();
}

void MpiSession::abort(int code) noexcept {
  SharedFolder::discard();
  MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

}  // namespace ringmark::comm
