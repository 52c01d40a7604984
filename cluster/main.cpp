// ringmark COMMAND [OPTIONS]: finds the command, and is the one place where an error becomes a line and an exit code.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cluster/backward/backward_command.h"
#include "cluster/backward/backward_options.h"
#include "cluster/decode/decode_command.h"
#include "cluster/decode/decode_options.h"
#include "cluster/doctor/doctor_command.h"
#include "cluster/doctor/doctor_options.h"
#include "cluster/inspect/inspect_command.h"
#include "cluster/inspect/inspect_options.h"
#include "cluster/job/error_line.h"
#include "cluster/options/option_layers.h"
#include "cluster/planning/calibrate_command.h"
#include "cluster/planning/calibrate_options.h"
#include "cluster/planning/plan_command.h"
#include "cluster/planning/plan_options.h"
#include "cluster/prefill/policies_command.h"
#include "cluster/prefill/prefill_command.h"
#include "cluster/prefill/prefill_options.h"
#include "cluster/scaling/scaling_command.h"
#include "cluster/scaling/scaling_options.h"
#include "cluster/simulation/simulate_command.h"
#include "cluster/simulation/simulate_options.h"
#include "core/error.h"

namespace {

using ringmark::Error;
using ringmark::ExitCode;
using namespace ringmark::cluster;

constexpr std::string_view kHelp =
    R"(ringmark: distributed sequence-parallel sparse attention.

  mpirun -n 4 ringmark prefill --input layer.safetensors --output result.safetensors

Commands:
  prefill      attention of one layer over one long sequence, sharded over ranks
  decode       attention of new tokens over kept, sharded K and V: prefill --snapshot keeps them
  backward     gradients of one layer's q, k and v from the gradient of its output
  policies     which keys a query attends to under each policy of prefill: paper, formula, options
  inspect      what is in a snapshot of kept K and V, in a safetensors file or in a folder of logs
  doctor       what this node and this job offer, and whether a job would run: a line a check, with the fix
  calibrate    what this machine can do, measured, as a profile for plan and simulate
  plan         what a prefill will take on so many nodes, before anything runs: memory, bytes, seconds
  simulate     what a prefill would take on a cluster that is not there, by node count
  scaling      a strong and weak scaling study over node counts, and its report

Options of a command: ringmark COMMAND --help

  --help       print this text
  --version    print the version
)";

struct Command {
  std::string_view name;
  boost::program_options::options_description (*options)();
  std::string (*help)();
  int (*run)(const std::vector<std::string>& arguments, const Environment& environment);
};

constexpr Command kCommands[] = {{"prefill", prefill_descriptions, prefill_help, run_prefill},
                                 {"decode", decode_descriptions, decode_help, run_decode},
                                 {"backward", backward_descriptions, backward_help, run_backward},
                                 {"policies", policies_descriptions, policies_help, run_policies},
                                 {"inspect", inspect_descriptions, inspect_help, run_inspect},
                                 {"doctor", doctor_descriptions, doctor_help, run_doctor},
                                 {"calibrate", calibrate_descriptions, calibrate_help, run_calibrate},
                                 {"plan", plan_descriptions, plan_help, run_plan},
                                 {"simulate", simulate_descriptions, simulate_help, run_simulate},
                                 {"scaling", scaling_descriptions, scaling_help, run_scaling}};

// The variables that are for this command, or for none: these are misspelled.
Environment environment_of(const Command& command) {
  Environment environment = ringmark_environment();
  for (const Command& other : kCommands) {
    environment = without_others(std::move(environment), command.options(), other.options());
  }
  return environment;
}

bool is_help(const std::string& argument) { return argument == "--help" || argument == "-h"; }

int print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    ringmark::fail_environment(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
  }
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "" : arguments.front();
  if (command.empty()) ringmark::fail_bad_input("no command given; see ringmark --help");
  if (is_help(command) || command == "help") return print(kHelp);
  if (command == "--version") return print("ringmark " RINGMARK_VERSION "\n");
  std::vector<std::string> names = {"--help", "--version"};
  for (const Command& known : kCommands) {
    names.emplace_back(known.name);
    if (command != known.name) continue;
    const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    // Before the options are read, so that a wrong setting somewhere cannot hide the text that explains it.
    if (std::any_of(rest.begin(), rest.end(), is_help)) return print(known.help());
    return known.run(rest, environment_of(known));
  }
  ringmark::fail_bad_input(fmt::format("unknown command {}{}", command, suggestion(command, names)));
}

int report(ExitCode code, const std::string& text) {
  print_error(text);
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
  // A file over the limit of the shell is an error with a line, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return run({argv + std::min(argc, 1), argv + argc});
  } catch (const Error& error) {
    return report(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(ExitCode::kEnvironment, "out of memory");
  } catch (const std::exception& error) {
    return report(ExitCode::kInternal, fmt::format("internal error: {}", error.what()));
  }
}
