#include <fmt/format.h>

#include <array>

#include "cluster/doctor/probe_transports.h"
#include "cluster/job/gpu_device.h"
#include "comm/cuda/choose_device_transport.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

Finding try_transport(comm::Communicator& ranks, TransportName name, bool needed) {
  try {
    return {Level::kPass, "transport", comm::cuda::choose_device_transport(ranks, device_transport(name)).why, ""};
  } catch (const Error& error) {
    if (error.code() != ExitCode::kEnvironment) throw;  // every rank throws this one at the same place
    return {needed ? Level::kFail : Level::kInfo, "transport", error.what(), needed ? "use --transport auto" : ""};
  }
}

}  // namespace

Findings probe_gpu_transports(comm::Communicator& ranks, const DoctorOptions& options) {
  Findings findings;
  try {
    findings.push_back({Level::kInfo, "device", choose_gpu(ranks, options.share_gpu).why, ""});
  } catch (const Error& error) {
    if (error.code() != ExitCode::kEnvironment) throw;
    return {{Level::kFail, "device", error.what(), ""}};
  }
  if (ranks.size() > 1) {
    for (const TransportName name : {TransportName::kCudaIpc, TransportName::kNccl}) {
      findings.push_back(try_transport(ranks, name, name == options.transport));
    }
  }
  if (options.transport == TransportName::kAuto) findings.push_back(try_transport(ranks, TransportName::kAuto, true));
  return findings;
}

}  // namespace ringmark::cluster
