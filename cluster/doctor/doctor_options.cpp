#include "cluster/doctor/doctor_options.h"

#include <fmt/format.h>

#include <array>
#include <boost/program_options/options_description.hpp>
#include <sstream>
#include <string_view>

#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

namespace po = boost::program_options;

constexpr std::int64_t kMaxThreads = 4096;
constexpr double kMaxDeadlineSeconds = 3600;
constexpr std::array kBackends = {kernels::Backend::kCpu, kernels::Backend::kCuda};

constexpr std::string_view kHelpHead =
    R"(ringmark doctor: what this node and this job offer, and whether a job would run here.

  ringmark doctor                                  on a login node, as one process
  mpirun -n 4 ringmark doctor --probe-bw           as the job would be started
  srun --mpi=pmix -N 2 --gpus-per-task=1 ringmark doctor --backend cuda

A line a check: PASS, INFO, WARN or FAIL, what was found, and the fix to type. Start it exactly as the job is started, with the
same --backend, --transport and --threads: it decides by what the job decides by.
Values come from flags, else from environment variables (--json is RINGMARK_JSON), else from the --config file.
Exit codes: 0 a job would run, 2 usage, 3 a job would fail.
)";

}  // namespace

DoctorOptions parse_doctor_options(const std::vector<std::string>& arguments, const Environment& environment) {
  const OptionValues values = read_option_layers(doctor_descriptions(), arguments, environment);
  DoctorOptions options;
  constexpr auto kTextOf = [](kernels::Backend backend) { return name_of(backend); };
  options.backend = read_choice<kernels::Backend>(values, "backend", kBackends, kTextOf).value_or(options.backend);
  options.transport = read_transport(values, options.backend);
  options.gpus = options.backend == kernels::Backend::kCuda || read_switch(values, "gpus");
  options.share_gpu = read_switch(values, "share-gpu");
  if (options.share_gpu && !options.gpus) {
    fail_bad_input(fmt::format("{} = true has no meaning without --backend cuda or --gpus",
                               find_value(values, "share-gpu")->origin));
  }
  options.probe_bandwidth = read_switch(values, "probe-bw");
  options.threads = read_count(values, "threads", 0, kMaxThreads).value_or(options.threads);
  options.deadline_seconds = read_positive(values, "deadline", kMaxDeadlineSeconds).value_or(options.deadline_seconds);
  options.settings = read_switch(values, "settings");
  options.json = read_text(values, "json");
  return options;
}

po::options_description doctor_descriptions() {
  const DoctorOptions defaults;
  OptionGroup group("Options");
  group.add("backend", "NAME", "of the job: cpu or cuda, one GPU a rank (default: cpu)")
      .add("transport", "NAME",
           "of the job: auto, or rma, request, ucx with --backend cpu, cuda-ipc, nccl with --backend cuda (default: "
           "auto)")
      .add_switch("gpus", "every rank needs a GPU of its own, also where this build has no CUDA")
      .add_switch("share-gpu", "ranks may share a GPU")
      .add("threads", "N", "threads a rank (default: 0, as many as the process is bound to)")
      .add_switch("probe-bw", "measure the bandwidth of each transport too")
      .add("deadline", "SECONDS",
           fmt::format("longest wait for other ranks, seconds (default: {})", defaults.deadline_seconds))
      .add_switch("settings", "print the environment variables that matter, and end")
      .add("json", "FILE", "write what was found as JSON (default: none)")
      .add("config", "FILE", "read options from lines of the form key = value, # begins a comment")
      .add_switch("help", "print this text");
  return group.options();
}

std::string doctor_help() {
  std::ostringstream text;
  text << kHelpHead << "\n" << doctor_descriptions();
  return text.str();
}

}  // namespace ringmark::cluster
