#include "cluster/planning/calibrate_command.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <optional>
#include <thread>

#include "cluster/job/host.h"
#include "cluster/job/job.h"
#include "cluster/options/text_file.h"
#include "cluster/planning/calibrate_options.h"
#include "cluster/planning/compute_measurement.h"
#include "cluster/planning/link_measurement.h"
#include "cluster/planning/machine_profile.h"
#include "core/error.h"
#include "kernels/block_table.h"
#include "runtime/agreement.h"

namespace ringmark::cluster {
namespace {

// Ranks that wait for the one that measures.
constexpr std::chrono::minutes kMeasuring{30};

class CalibrateCommand {
 public:
  CalibrateCommand(const CalibrateOptions& options, comm::Communicator& ranks) : options_(options), ranks_(ranks) {}

  void run() {
    runtime::agree(ranks_, "check the output", [&] {
      if (!options_.output.empty() && ranks_.rank() == 0) check_text_file(options_.output);
    });
    // One rank at a time: the rates are those of a rank with a core of its own.
    if (ranks_.rank() == 0) compute_ = measure_compute(options_);
    ranks_.barrier("measure the stages", kMeasuring);
    links_ =
        measure_links(ranks_, host_transport(options_.transport), kernels::BlockShape::of(options_.problem).bytes());
    if (ranks_.rank() != 0) return;
    const MachineProfile profile = make_profile();
    print(profile);
    if (!options_.output.empty()) write_profile(profile, options_.output);
  }

 private:
  bool on_gpu() const { return options_.backend == kernels::Backend::kCuda; }
  static int cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

  MachineProfile make_profile() const {
    const AttentionProblem& p = options_.problem;
    MachineProfile profile;
    profile.name = options_.name;
    profile.backend = name_of(options_.backend);
    profile.measured = fmt::format(
        "{:%Y-%m-%d}, {}, {} cores, {}, H={}, Hkv={}, d={}, S={}, up to {} tokens, {} thread{} a rank, the best of {}",
        fmt::gmtime(std::time(nullptr)), compute_.where, cores(), name_of(p.dtype), p.heads, p.kv_heads, p.head_dim,
        p.chunk_size, options_.tokens, options_.threads, options_.threads == 1 ? "" : "s", options_.repeats);
    profile.ranks_per_node = links_.ranks_on_host;
    profile.threads = static_cast<int>(options_.threads);
    profile.cores_per_node = on_gpu() ? 0 : cores();
    profile.memory_bytes = on_gpu() ? compute_.gpu_memory : available_memory();
    profile.compute = compute_.rates;
    profile.links = links_.links;
    if (on_gpu()) {
      profile.links = find_profile("h200").links;
      for (LinkRate& link : profile.links) {
        if (link.known()) link.source = "of profile h200, not measured here: " + link.source;
      }
    }
    return profile;
  }

  void print(const MachineProfile& profile) const {
    fmt::print("{:<12}{}\n", "machine", profile.measured);
    fmt::print("{:<12}{:>12} {:>12} {:>12}   fit: mean, worst error\n", "stage", "fixed s", "s a row", "s a unit");
    for (const auto& [stage, fit] : compute_.fits) {
      fmt::print("{:<12}{:>12.3g} {:>12.3g} {:>12.3g}   {:.1f}%, {:.1f}%\n", stage, fit.rate.fixed, fit.rate.row,
                 fit.rate.unit, 100 * fit.mean_error, 100 * fit.worst_error);
    }
    fmt::print("{:<12}{:>12.3g} {:>12.3g} {:>12.3g}   {}\n", "pack", profile.compute.pack.fixed,
               profile.compute.pack.row, profile.compute.pack.unit, on_gpu() ? "of profile h200" : "measured apart");
    fmt::print(
        "{:<12}whole ones of the middle policy, predicted over measured: off by {:.1f}% on average, {:.1f}% at worst\n",
        "layers", 100 * compute_.mean_error, 100 * compute_.worst_error);
    for (const LinkClass which : kLinkClasses) {
      const LinkRate& link = profile.link(which);
      if (!link.known()) continue;
      fmt::print("{:<12}{:.2f} GB/s streamed, {:.2f} scattered, {:.1f} us, {:.2f} us a read{}; {}\n",
                 fmt::format("link {}", name_of(which)), link.streamed / 1e9, link.scattered / 1e9, link.latency * 1e6,
                 link.request * 1e6, link.node > 0 ? fmt::format(", {:.2f} GB/s a host", link.node / 1e9) : "",
                 link.source);
    }
    if (ranks_.size() == 1) fmt::print("{:<12}none measured: one rank. Start it on two\n", "links");
    if (const double slowdown = profile.slowdown(links_.ranks_on_host); slowdown > 1.0) {
      fmt::print("{:<12}{} ranks a host on {} cores: links were measured under contention\n", "note",
                 links_.ranks_on_host, profile.cores_per_node);
    }
    std::fflush(stdout);
  }

  const CalibrateOptions& options_;
  comm::Communicator& ranks_;
  ComputeMeasurement compute_;
  LinkMeasurement links_;
};

}  // namespace

int run_calibrate(const std::vector<std::string>& arguments, const Environment& environment) {
  std::optional<CalibrateOptions> options;
  try {
    options = parse_calibrate_options(arguments, environment);
  } catch (const Error& error) {
    return refuse_options(error);
  }
  JobOptions job;
  job.timeout = std::chrono::duration<double>(options->deadline_seconds);
  job.use.gpus = options->backend == kernels::Backend::kCuda;
  return run_job(job, [&](comm::Communicator& ranks, Termination&) { CalibrateCommand(*options, ranks).run(); });
}

}  // namespace ringmark::cluster
