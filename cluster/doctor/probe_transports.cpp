#include "cluster/doctor/probe_transports.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "comm/block_transport.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBandwidthBytes = 16 << 20;
constexpr int kBandwidthReads = 3;

struct Tried {
  bool works = false;
  std::string words;
};

// Of the slowest rank, all reading from their right neighbours at once; bytes a second.
double measure_bandwidth(comm::Communicator& ranks, comm::BlockTransport& transport) {
  const comm::Bytes region = transport.expose(kBandwidthBytes);
  std::memset(region.data(), 1 + ranks.rank() % 100, region.size());
  transport.publish();
  std::vector<std::byte> target(static_cast<std::size_t>(kBandwidthBytes));
  const comm::RemoteRead read{(ranks.rank() + 1) % ranks.size(), 0, 0, comm::Bytes(target)};
  double best = 1e300;  // seconds
  for (int i = 0; i < kBandwidthReads; ++i) {
    ranks.barrier("measure a transport");
    const auto begin = Clock::now();
    transport.get(std::span(&read, 1))->wait();
    double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    ranks.all_reduce_max("measure a transport", std::span(&seconds, 1));
    best = std::min(best, seconds);
  }
  transport.retire();
  return static_cast<double>(kBandwidthBytes) / best;
}

// A forced choice says that it was forced, which here it always is.
std::string without_asking(std::string words) {
  constexpr std::string_view kAsked = "asked for; ";
  const std::size_t at = words.find(kAsked);
  return at == std::string::npos ? words : words.erase(at, kAsked.size());
}

Tried try_transport(comm::Communicator& ranks, comm::TransportChoice choice, bool bandwidth) {
  try {
    comm::ChosenTransport chosen = comm::choose_transport(ranks, choice);
    if (!bandwidth || ranks.size() == 1) return {true, without_asking(chosen.why)};
    return {true, fmt::format("{}; {:.2f} GB/s a rank, all reading 16 MiB at once", without_asking(chosen.why),
                              measure_bandwidth(ranks, *chosen.transport) * 1e-9)};
  } catch (const Error& error) {
    if (error.code() != ExitCode::kEnvironment) throw;  // every rank throws this one at the same place
    return {false, error.what()};
  }
}

std::string fix_of(std::string_view name, const DoctorOptions& options) {
  if (name == "rma") return "enlarge /dev/shm, start the ranks on one host, or use --transport request";
  if (name == "ucx") return "look at UCX_TLS and UCX_NET_DEVICES, or use --transport auto";
  return options.transport == TransportName::kAuto ? "look at the network between the hosts and at OMPI_MCA_btl"
                                                   : "use --transport auto";
}

Findings probe_host_transports(comm::Communicator& ranks, const DoctorOptions& options) {
  struct Named {
    comm::TransportChoice choice;
    std::string_view name;
  };
  constexpr std::array kAll = {Named{comm::TransportChoice::kRma, "rma"},
                               Named{comm::TransportChoice::kRequest, "request"},
                               Named{comm::TransportChoice::kUcx, "ucx"}};
  const comm::TransportChoice asked = host_transport(options.transport);
  Findings findings;
  for (const Named& each : kAll) {
    const Tried tried = try_transport(ranks, each.choice, options.probe_bandwidth);
    const bool needed = asked == each.choice;
    // A job that is free to choose goes on with request where rma fails, and never takes ucx.
    const Level level = tried.works ? Level::kPass : needed ? Level::kFail : Level::kInfo;
    findings.push_back({level, "transport", tried.words, level == Level::kFail ? fix_of(each.name, options) : ""});
  }
  if (asked != comm::TransportChoice::kAuto || options.backend == kernels::Backend::kCuda) return findings;
  const Tried chosen = try_transport(ranks, comm::TransportChoice::kAuto, false);
  findings.push_back({chosen.works ? Level::kPass : Level::kFail, "transport",
                      fmt::format("auto takes {}", chosen.words), chosen.works ? "" : fix_of("request", options)});
  return findings;
}

}  // namespace

Findings probe_transports(comm::Communicator& ranks, const DoctorOptions& options) {
  if (options.backend == kernels::Backend::kCuda) return probe_gpu_transports(ranks, options);
  if (ranks.size() > 1) return probe_host_transports(ranks, options);
  const Tried tried = try_transport(ranks, host_transport(options.transport), false);
  return {{tried.works ? Level::kPass : Level::kFail, "transport", tried.words,
           tried.works ? "" : "use --transport auto for one rank"}};
}

}  // namespace ringmark::cluster
