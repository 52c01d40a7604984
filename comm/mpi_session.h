// The lifetime of MPI in this process: one session, made first and destroyed last.
#pragma once

#include <chrono>
#include <optional>

#include "comm/shared_folder.h"

namespace ringmark::comm {

class MpiSession {
 public:
  // Initialises MPI for calls from any thread, as far as it grants that. `timeout`: longest wait for ranks that do not
  // join or leave (see UncancellableWait). Throws Error(kEnvironment) for a launch that would silently run every task
  // as a job of its own (see refuse_split_launch).
  explicit MpiSession(std::chrono::duration<double> timeout = std::chrono::seconds(120));
  // Finalises; not while an exception unwinds: finalising waits for the other ranks, which wait for this one. The
  // error path ends in abort().
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Ends the job on all ranks with `code`, and leaves nothing in shared memory.
  [[noreturn]] static void abort(int code) noexcept;

 private:
  int rank_ = 0;
  int size_ = 1;
  int exceptions_at_start_ = 0;
  std::optional<SharedFolder> folder_;
};

// The rank that the launcher gave to this process, for what happens before MPI can tell; 0 without a launcher.
int launched_rank();

// Throws Error(kEnvironment) when srun started a step of several tasks without a process manager that MPI can use: its
// initialisation would end every task with a page of text. step_tasks is SLURM_STEP_NUM_TASKS, null when unset.
void refuse_step_without_pmi(const char* step_tasks, bool has_pmi);

// Throws Error(kEnvironment) with both numbers when Slurm started several tasks and MPI sees only one: the library and
// Slurm do not speak the same PMI. slurm_ntasks is the variable SLURM_NTASKS, null when unset. Under mpirun the number
// of Slurm tasks says nothing.
void refuse_split_launch(int world_size, const char* slurm_ntasks, bool under_mpirun);

}  // namespace ringmark::comm
