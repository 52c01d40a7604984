// The table of kernel_bench: a line a measurement, printed as it comes, and whether all answers were right.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "bench/gpu/timing.h"

namespace ringmark::bench {

struct KernelOptions {
  int repeats = 7;
  bool quick = false;  // small inputs, to see that everything runs
};

struct KernelTime {
  std::string kernel;
  std::string family;
  std::string input;
  Spread ms;
  double work = 0.0;     // useful operations, or bytes
  double ceiling = 0.0;  // of work a second; 0: none is named
  bool moves_bytes = false;
  std::string wrong;  // where the answer differs from the reference; empty when nowhere
};

class KernelTable {
 public:
  KernelTable() {
    fmt::print("{:<15}{:<15}{:<53}{:>9} {:<18}{:>8}  {:<8}{:>8}\n", "kernel", "family", "input", "ms", "[least, most]",
               "rate", "", "ceiling");
  }

  void add(const KernelTime& time) {
    const double rate = time.work / (time.ms.median * 1e-3);
    const double unit = time.moves_bytes ? 1e9 : 1e12;
    fmt::print("{:<15}{:<15}{:<53}{:>9.3f} {:<18}{:>8.1f}  {:<8}{:>8}  {}\n", time.kernel, time.family, time.input,
               time.ms.median, fmt::format("[{:.3f}, {:.3f}]", time.ms.low, time.ms.high), rate / unit,
               time.moves_bytes ? "GB/s" : "TFLOP/s",
               time.ceiling > 0.0 ? fmt::format("{:.0f}%", 100.0 * rate / time.ceiling) : "",
               time.wrong.empty() ? "right" : "WRONG: " + time.wrong);
    std::fflush(stdout);
    good_ = good_ && time.wrong.empty();
  }

  bool good() const { return good_; }

 private:
  bool good_ = true;
};

}  // namespace ringmark::bench
