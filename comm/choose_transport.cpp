#include <fmt/format.h>

#include "comm/block_transport.h"
#include "comm/loopback_transport.h"
#include "comm/mpi_communicator.h"
#include "comm/request_transport.h"
#include "comm/rma_transport.h"
#include "comm/transport_probe.h"
#include "core/error.h"
#ifdef RINGMARK_HAS_UCX
#include "comm/ucx_transport.h"
#endif

namespace ringmark::comm {
namespace {

// What became of one candidate: `usable` is null when it failed, and `words` says why.
struct Candidate {
  std::unique_ptr<BlockTransport> usable;
  std::string words;
};

// The probe gets a transport of its own, with a short timeout: one that failed may have operations left pending.
// `check` may refuse it with Error(kEnvironment) on all ranks.
template <class Transport, class Check, class... Options>
Candidate try_checked(MpiCommunicator& communicator, Check&& check, const Options&... options) {
  try {
    Transport probed(communicator, kProbeLimit, options...);
    check(probed);
    if (communicator.size() > 1) {
      ProbeResult result = probe_transport(communicator, probed);
      if (!result.passed) return {nullptr, std::move(result.words)};
      return {std::make_unique<Transport>(communicator, communicator.timeout(), options...), std::move(result.words)};
    }
    return {std::make_unique<Transport>(communicator, communicator.timeout(), options...), "one rank"};
  } catch (const Error& error) {
    // Every rank throws this one at the same place; a peer that is gone stays an error.
    if (error.code() != ExitCode::kEnvironment) throw;
    return {nullptr, error.what()};
  }
}

template <class Transport, class... Options>
Candidate try_transport(MpiCommunicator& communicator, const Options&... options) {
  return try_checked<Transport>(
      communicator, [](Transport&) {}, options...);
}

Candidate try_ucx([[maybe_unused]] MpiCommunicator& communicator,
                  [[maybe_unused]] const std::optional<SpillPolicy>& spill) {
#ifdef RINGMARK_HAS_UCX
  return try_transport<UcxTransport>(communicator, spill);
#else
  return {nullptr, "this build has no UCX (Debian: install libucx-dev and build again)"};
#endif
}

ChosenTransport forced(Candidate candidate, std::string_view name) {
  if (candidate.usable == nullptr) {
    fail_environment(fmt::format("transport '{}' was asked for and does not work here: {}", name, candidate.words));
  }
  return {std::move(candidate.usable), fmt::format("{}: asked for; {}", name, candidate.words)};
}

}  // namespace

ChosenTransport choose_transport(Communicator& communicator, TransportChoice choice, std::int64_t region_bytes,
                                 const std::optional<SpillPolicy>& spill) {
  if (spill && choice == TransportChoice::kRma) {
    fail_bad_input("transport 'rma' does not read what is over the budget in a file; limit: auto, request or ucx");
  }
  if (choice == TransportChoice::kAuto && communicator.shares_address_space()) {
    return {std::make_unique<LoopbackTransport>(communicator, spill),
            communicator.size() == 1 ? "loopback: one rank" : "loopback: all ranks share one address space"};
  }
  auto* mpi = dynamic_cast<MpiCommunicator*>(&communicator);
  if (mpi == nullptr) fail_environment("transports 'rma', 'request' and 'ucx' need ranks that are MPI processes");
  if (choice == TransportChoice::kRma) return forced(try_transport<RmaTransport>(*mpi), "rma");
  if (choice == TransportChoice::kRequest) return forced(try_transport<RequestTransport>(*mpi, spill), "request");
  if (choice == TransportChoice::kUcx) return forced(try_ucx(*mpi, spill), "ucx");
  Candidate rma{nullptr, "it does not read what is over the budget in a file"};
  if (!spill) {
    rma = try_checked<RmaTransport>(*mpi, [&](RmaTransport& transport) { transport.check_room(region_bytes); });
  }
  if (rma.usable != nullptr) return {std::move(rma.usable), fmt::format("rma: {}", rma.words)};
  Candidate request = try_transport<RequestTransport>(*mpi, spill);
  if (request.usable == nullptr) {
    fail_environment(fmt::format("no transport works here: rma: {}; request: {}", rma.words, request.words));
  }
  return {std::move(request.usable), fmt::format("request: {}; rma failed: {}", request.words, rma.words)};
}

}  // namespace ringmark::comm
