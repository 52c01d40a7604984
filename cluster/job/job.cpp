#include "cluster/job/job.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>

#include "cluster/job/error_line.h"
#include "cluster/launch/launch_warning.h"
#include "cluster/telemetry/wait_fields.h"
#include "comm/mpi_communicator.h"
#include "comm/mpi_session.h"
#include "comm/shared_folder.h"
#include "comm/thread_ranks.h"
#include "comm/uncancellable_wait.h"
#include "core/error.h"
#include "runtime/agreement.h"

namespace ringmark::cluster {
namespace {

struct Failure {
  ExitCode code;
  std::string text;  // empty: another rank says it
  bool agreed;
  std::optional<comm::WaitNote> wait = std::nullopt;  // that missed its deadline; unset: the one that ended last
};

// srun hides exit codes, so every failing rank leaves its own first cause.
void leave_cause(const std::string& log_dir, int rank, const Failure& failure) {
  if (log_dir.empty() || failure.text.empty()) return;
  nlohmann::ordered_json cause = {
      {"rank", rank}, {"exit_code", static_cast<int>(failure.code)}, {"error", failure.text}};
  const auto wait = failure.wait ? failure.wait : comm::CurrentWait::ended_last();
  if (failure.code == ExitCode::kPeer && wait) cause["wait"] = wait_fields(*wait);
  std::ofstream(fmt::format("{}/error.{}.json", log_dir, rank)) << cause.dump() << "\n";
}

// Peer errors name their rank themselves.
void say(int rank, int ranks, const Failure& failure) {
  if (failure.text.empty()) return;
  const bool names_rank = failure.agreed || failure.code == ExitCode::kPeer || ranks == 1;
  print_error(names_rank ? failure.text : fmt::format("rank {}: {}", rank, failure.text));
}

// Returns the failure of the work, if any.
std::unique_ptr<Failure> attempt(const std::function<void()>& work) {
  try {
    work();
    return nullptr;
  } catch (const runtime::AgreedError& error) {
    return std::make_unique<Failure>(Failure{error.code(), error.what(), true});
  } catch (const Error& error) {
    return std::make_unique<Failure>(Failure{error.code(), error.what(), false});
  } catch (const std::bad_alloc&) {
    return std::make_unique<Failure>(Failure{ExitCode::kEnvironment, "out of memory", false});
  } catch (const std::exception& error) {
    return std::make_unique<Failure>(
        Failure{ExitCode::kInternal, fmt::format("internal error: {}", error.what()), false});
  }
}

void tell_end(Telemetry* telemetry, const Failure* failure) {
  if (telemetry == nullptr) return;
  if (failure != nullptr) telemetry->failed(failure->code, failure->text);
  telemetry->ended(failure == nullptr ? 0 : static_cast<int>(failure->code));
}

// A wait inside MPI has no way out but this one.
void leave_when_overdue(const JobOptions& options, int rank) {
  comm::UncancellableWait::on_overdue([options, rank](const std::string& text) {
    const Failure failure{ExitCode::kPeer, text, false, comm::CurrentWait::latest()};
    print_error(text);
    leave_cause(options.log_dir, rank, failure);
    tell_end(options.telemetry, &failure);
    comm::SharedFolder::discard();
    std::_Exit(static_cast<int>(failure.code));
  });
}

int run_work(const JobOptions& options, int rank, int ranks, const std::function<void()>& work) {
  const std::unique_ptr<Failure> failure = attempt(work);
  if (failure == nullptr) {
    tell_end(options.telemetry, nullptr);
    return 0;
  }
  say(rank, ranks, *failure);
  leave_cause(options.log_dir, rank, *failure);
  tell_end(options.telemetry, failure.get());
  if (!failure->agreed && ranks > 1) comm::MpiSession::abort(static_cast<int>(failure->code));
  return static_cast<int>(failure->code);
}

}  // namespace

JobOptions job_options(const RunOptions& options, kernels::Backend backend, TransportName transport,
                       Telemetry& telemetry) {
  return {.timeout = std::chrono::duration<double>(options.deadline_seconds),
          .log_dir = options.log_dir,
          .use = {.gpus = backend == kernels::Backend::kCuda, .ucx = transport == TransportName::kUcx},
          .quiet = options.quiet,
          .telemetry = &telemetry};
}

// Set by mpirun, by srun --mpi=pmix, and by Slurm for several tasks (which MPI must then see, or the launch is
// refused).
bool launched_as_job() {
  const char* tasks = std::getenv("SLURM_NTASKS");
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMIX_RANK") != nullptr ||
         (tasks != nullptr && std::atoi(tasks) > 1);
}

int run_job(const JobOptions& options, const JobBody& body) {
  const int rank = comm::launched_rank();
  Termination termination(options.log_dir, rank, options.telemetry);  // before MPI starts threads
  if (!launched_as_job()) {
    const std::unique_ptr<comm::Communicator> alone = comm::make_single_rank();
    return run_work(options, rank, 1, [&] { body(*alone, termination); });
  }
  if (rank == 0 && !options.quiet) warn_of_settings(find_launch_facts(options.use));
  std::optional<comm::UncancellableWait> leaving;  // outlives the session, whose end waits for all ranks
  leave_when_overdue(options, rank);
  const comm::MpiSession session(options.timeout);
  std::optional<comm::MpiCommunicator> communicator;
  const int code = run_work(options, rank, session.size(), [&] {
    communicator.emplace(MPI_COMM_WORLD, comm::MpiOptions{.timeout = options.timeout});
    body(*communicator, termination);
    communicator->barrier("end of the job");
  });
  leaving.emplace(session.rank(), "leave the job", options.timeout);
  return code;
}

int refuse_options(const Error& error) {
  if (!launched_as_job()) throw error;
  JobOptions options;
  options.quiet = true;
  return run_job(options, [&](comm::Communicator& ranks, Termination&) {
    runtime::agree(ranks, "read the options", [&] { throw error; });
  });
}

}  // namespace ringmark::cluster
