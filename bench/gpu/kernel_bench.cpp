// The kernels alone, each on an input made for it, against the roofline. Answers are checked in the same run; a wrong
// one fails the benchmark.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "bench/gpu/attend_times.h"
#include "bench/gpu/gather_times.h"
#include "bench/gpu/score_times.h"
#include "comm/cuda/choose_device.h"
#include "comm/thread_ranks.h"
#include "core/error.h"

namespace ringmark::bench {
namespace {

struct Part {
  std::string_view name;
  void (*time)(const KernelOptions&, KernelTable&);
};
constexpr Part kParts[] = {{"chosen", time_chosen_kernels},
                           {"dense", time_dense_kernels},
                           {"window", time_window_kernels},
                           {"score", time_scoring_kernels},
                           {"gather", time_gathers}};

struct Options : KernelOptions {
  std::vector<Part> parts{std::begin(kParts), std::end(kParts)};
};

std::vector<Part> parts_of(const std::string& names) {
  std::vector<Part> parts;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    const auto part = std::ranges::find(kParts, names.substr(begin, end - begin), &Part::name);
    if (part == std::end(kParts)) fail_bad_input("--only takes a list of chosen, dense, window, score and gather");
    parts.push_back(*part);
    begin = end + 1;
  }
  return parts;
}

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--quick") {
      options.quick = true;
      continue;
    }
    if (i + 1 == argc) fail_bad_input(name + " needs a value");
    const char* value = argv[++i];
    if (name == "--only") {
      options.parts = parts_of(value);
    } else if (name == "--repeats") {
      options.repeats = std::atoi(value);
      if (options.repeats < 1) fail_bad_input("--repeats takes a number from 1 on");
    } else {
      fail_bad_input("unknown option " + name + "; there are --only PART,PART --repeats R --quick");
    }
  }
  return options;
}

int run(int argc, char** argv) {
  const Options options = read_options(argc, argv);
  const auto communicator = comm::make_single_rank();
  fmt::print("{}\n", comm::cuda::choose_device(*communicator, false).why);
  KernelTable table;
  for (const Part& part : options.parts) part.time(options, table);
  return table.good() ? 0 : 1;
}

}  // namespace
}  // namespace ringmark::bench

int main(int argc, char** argv) {
  try {
    return ringmark::bench::run(argc, argv);
  } catch (const ringmark::Error& error) {
    fmt::print(stderr, "kernel_bench: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
