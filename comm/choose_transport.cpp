#include <fmt/format.h>

#include "comm/block_transport.h"
#include "comm/loopback_transport.h"
#include "comm/mpi_communicator.h"
#include "comm/request_transport.h"
#include "comm/rma_transport.h"
#include "comm/transport_probe.h"
#include "core/error.h"

namespace ringmark::comm {
namespace {

// What became of one candidate: `usable` is null when it failed, and `words` says why.
struct Candidate {
  std::unique_ptr<BlockTransport> usable;
  std::string words;
};

// The probe gets a transport of its own, with a short timeout: one that failed may have operations left pending.
// `check` may refuse it with Error(kEnvironment) on all ranks.
template <class Transport, class Check>
Candidate try_transport(MpiCommunicator& communicator, Check&& check) {
  try {
    Transport probed(communicator, kProbeLimit);
    check(probed);
    if (communicator.size() > 1) {
      ProbeResult result = probe_transport(communicator, probed);
      if (!result.passed) return {nullptr, std::move(result.words)};
      return {std::make_unique<Transport>(communicator, communicator.timeout()), std::move(result.words)};
    }
    return {std::make_unique<Transport>(communicator, communicator.timeout()), "one rank"};
  } catch (const Error& error) {
    // Every rank throws this one at the same place; a peer that is gone stays an error.
    if (error.code() != ExitCode::kEnvironment) throw;
    return {nullptr, error.what()};
  }
}

template <class Transport>
Candidate try_transport(MpiCommunicator& communicator) {
  return try_transport<Transport>(communicator, [](Transport&) {});
}

ChosenTransport forced(Candidate candidate, std::string_view name) {
  if (candidate.usable == nullptr) {
    fail_environment(fmt::format("transport '{}' was asked for and does not work here: {}", name, candidate.words));
  }
  return {std::move(candidate.usable), fmt::format("{}: asked for; {}", name, candidate.words)};
}

}  // namespace

ChosenTransport choose_transport(Communicator& communicator, TransportChoice choice, std::int64_t region_bytes) {
  if (choice == TransportChoice::kAuto && communicator.shares_address_space()) {
    return {std::make_unique<LoopbackTransport>(communicator),
            communicator.size() == 1 ? "loopback: one rank" : "loopback: all ranks share one address space"};
  }
  auto* mpi = dynamic_cast<MpiCommunicator*>(&communicator);
  if (mpi == nullptr) fail_environment("transports 'rma' and 'request' need ranks that are MPI processes");
  if (choice == TransportChoice::kRma) return forced(try_transport<RmaTransport>(*mpi), "rma");
  if (choice == TransportChoice::kRequest) return forced(try_transport<RequestTransport>(*mpi), "request");
  Candidate rma =
      try_transport<RmaTransport>(*mpi, [&](RmaTransport& transport) { transport.check_room(region_bytes); });
  if (rma.usable != nullptr) return {std::move(rma.usable), fmt::format("rma: {}", rma.words)};
  Candidate request = try_transport<RequestTransport>(*mpi);
  if (request.usable == nullptr) {
    fail_environment(fmt::format("no transport works here: rma: {}; request: {}", rma.words, request.words));
  }
  return {std::move(request.usable), fmt::format("request: {}; rma failed: {}", request.words, rma.words)};
}

}  // namespace ringmark::comm
