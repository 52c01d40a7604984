#include "comm/cuda/choose_device_transport.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/cuda/choose_device.h"
#include "comm/cuda/device_probe.h"
#include "comm/cuda/ipc_transport.h"
#include "comm/cuda/local_device_transport.h"
#include "core/error.h"
#ifdef RINGMARK_HAS_NCCL
#include "comm/cuda/nccl_transport.h"
#endif

namespace ringmark::comm::cuda {
namespace {

// What became of one candidate: `usable` is null when it failed, and `words` says why.
struct Candidate {
  std::unique_ptr<DeviceTransport> usable;
  std::string words;
};

template <class Transport>
Candidate try_transport(Communicator& communicator) {
  try {
    auto transport = std::make_unique<Transport>(communicator);
    ProbeResult result = probe_device_transport(communicator, *transport);
    if (!result.passed) return {nullptr, std::move(result.words)};
    return {std::move(transport), std::move(result.words)};
  } catch (const Error& error) {
    // Every rank throws this one at the same place; a peer that is gone stays an error.
    if (error.code() != ExitCode::kEnvironment) throw;
    return {nullptr, error.what()};
  }
}

Candidate try_ipc(Communicator& communicator) {
  if (communicator.host_ranks() < communicator.size()) return {nullptr, "not all ranks are on one host"};
  return try_transport<IpcTransport>(communicator);
}

#ifdef RINGMARK_HAS_NCCL
Candidate try_nccl(Communicator& communicator) {
  // One thread's call that waits for its GPU holds up the messages that another thread has still to post.
  if (communicator.size() > 1 && communicator.shares_address_space()) {
    return {nullptr, "ranks are threads of one process"};
  }
  const std::vector<Uuid> gpus = gather_current_gpus(communicator);
  for (std::size_t r = 1; r < gpus.size(); ++r) {
    const auto end = gpus.begin() + static_cast<std::ptrdiff_t>(r);
    const auto same = std::find(gpus.begin(), end, gpus[r]);
    if (same == end) continue;
    return {nullptr, fmt::format("NCCL takes no two ranks of one GPU, and ranks {} and {} share {}",
                                 same - gpus.begin(), r, text_of(gpus[r]))};
  }
  return try_transport<NcclTransport>(communicator);
}
#else
Candidate try_nccl(Communicator&) { return {nullptr, "this build has no NCCL"}; }
#endif

ChosenDeviceTransport forced(Candidate candidate, std::string_view name) {
  if (candidate.usable == nullptr) {
    fail_environment(fmt::format("transport '{}' was asked for and does not work here: {}", name, candidate.words));
  }
  return {std::move(candidate.usable), fmt::format("{}: asked for; {}", name, candidate.words)};
}

}  // namespace

ChosenDeviceTransport choose_device_transport(Communicator& communicator, DeviceTransportChoice choice) {
  if (choice == DeviceTransportChoice::kCudaIpc) return forced(try_ipc(communicator), "cuda-ipc");
  if (choice == DeviceTransportChoice::kNccl) return forced(try_nccl(communicator), "nccl");
  if (communicator.shares_address_space()) {
    return {std::make_unique<LocalDeviceTransport>(communicator),
            communicator.size() == 1 ? "local: one rank" : "local: all ranks share one address space"};
  }
  Candidate ipc = try_ipc(communicator);
  if (ipc.usable != nullptr) return {std::move(ipc.usable), fmt::format("cuda-ipc: {}", ipc.words)};
  Candidate nccl = try_nccl(communicator);
  if (nccl.usable == nullptr) {
    fail_environment(
        fmt::format("no transport between GPUs works here: cuda-ipc: {}; nccl: {}", ipc.words, nccl.words));
  }
  return {std::move(nccl.usable), fmt::format("nccl: {}; cuda-ipc: {}", nccl.words, ipc.words)};
}

}  // namespace ringmark::comm::cuda
