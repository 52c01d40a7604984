// ringmark COMMAND [OPTIONS]: finds the command, and is the one place where an error becomes a line and an exit code.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cluster/error_line.h"
#include "cluster/option_layers.h"
#include "cluster/prefill_command.h"
#include "cluster/prefill_options.h"
#include "core/error.h"

namespace {

using ringmark::Error;
using ringmark::ExitCode;
using namespace ringmark::cluster;

constexpr std::string_view kHelp =
    R"(ringmark: distributed sequence-parallel sparse attention.

  mpirun -n 4 ringmark prefill --input layer.safetensors --output result.safetensors

Commands:
  prefill      attention of one layer over one long sequence, sharded over ranks;
               its options: ringmark prefill --help

  --help       print this text
  --version    print the version
)";

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
  if (command != "prefill") {
    const std::vector<std::string> commands = {"prefill", "--help", "--version"};
    ringmark::fail_bad_input(fmt::format("unknown command {}{}", command, suggestion(command, commands)));
  }
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  // Before the options are read, so that a wrong setting somewhere cannot hide the text that explains it.
  if (std::any_of(rest.begin(), rest.end(), is_help)) return print(prefill_help());
  return run_prefill(rest, ringmark_environment());
}

int report(ExitCode code, const std::string& text) {
  print_error(text);
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
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
