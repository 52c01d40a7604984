#include "comm/cuda/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <future>
#include <mutex>
#include <numeric>
#include <thread>

#include "comm/backoff.h"
#include "comm/cuda/agree.h"
#include "comm/cuda/pending_copies.h"
#include "comm/deadline.h"
#include "comm/peer_failure.h"
#include "core/error.h"

namespace ringmark::comm::cuda {
namespace {

constexpr std::string_view kStarting = "start NCCL";
// Ending NCCL may wait for ranks that are gone; that must not keep this one from telling what happened.
constexpr std::chrono::seconds kEndLimit{10};

void keep_multicast_off() {
  static std::once_flag once;
  std::call_once(once, [] { setenv("NCCL_NVLS_ENABLE", "0", 0); });
}

ncclUniqueId agree_on_id(Communicator& communicator) {
  ncclUniqueId id{};
  std::string trouble;
  if (communicator.rank() == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess)
      trouble = fmt::format("NCCL: {} ({})", ncclGetErrorString(result), ncclGetLastError(nullptr));
  }
  agree(communicator, kStarting, trouble);
  std::vector<ncclUniqueId> ids(static_cast<std::size_t>(communicator.size()));
  std::vector<Bytes> all;
  for (ncclUniqueId& of_rank : ids) all.push_back(std::as_writable_bytes(std::span(&of_rank, 1)));
  communicator.all_gather(kStarting, std::as_bytes(std::span(&id, 1)), all);
  return ids[0];
}

// A transfer that breaks is the peer's or the network's doing; the same code at the start means that this host is not
// set up for it.
ExitCode exit_code_of(ncclResult_t result, bool started) {
  switch (result) {
    case ncclRemoteError: return ExitCode::kPeer;
    case ncclSystemError: return started ? ExitCode::kPeer : ExitCode::kEnvironment;
    case ncclUnhandledCudaError: return ExitCode::kEnvironment;
    default: return started ? ExitCode::kInternal : ExitCode::kEnvironment;
  }
}

class PendingMessages final : public PendingReads {
 public:
  PendingMessages(NcclCommunicator& nccl, std::string_view stage, cudaStream_t stream,
                  std::vector<CopyLists::Lease> leases, std::vector<int> peers)
      : nccl_(nccl), stage_(stage), leases_(std::move(leases)), peers_(std::move(peers)) {
    done_.record(stream);
  }
  ~PendingMessages() override {
    try {
      wait();
    } catch (const Error&) {
      // The GPU may still read the lists: they are never used again.
      for (CopyLists::Lease& lease : leases_) (void)lease.release();
    }
  }
  void wait() override {
    nccl_.wait(stage_, done_, peers_);
    leases_.clear();
  }

 private:
  NcclCommunicator& nccl_;
  std::string stage_;
  ringmark::cuda::Event done_;
  std::vector<CopyLists::Lease> leases_;
  std::vector<int> peers_;
};

}  // namespace

NcclCommunicator::NcclCommunicator(Communicator& communicator)
    : communicator_(communicator), exceptions_at_start_(std::uncaught_exceptions()) {
  keep_multicast_off();
  const ncclUniqueId id = agree_on_id(communicator);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  std::string trouble;
  try {
    check(ncclCommInitRankConfig(&comm_, communicator.size(), id, communicator.rank(), &config), kStarting);
    await_ready(kStarting, others());
  } catch (const Error& error) {
    if (error.code() != ExitCode::kEnvironment) throw;
    trouble = error.what();
  }
  try {
    agree(communicator, kStarting, trouble);
  } catch (const Error&) {
    abort();
    throw;
  }
  started_ = true;
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr) return;
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  if (unwinding || !finalize()) {
    abort();
    return;
  }
  (void)ncclCommDestroy(comm_);
}

std::vector<int> NcclCommunicator::others() const {
  std::vector<int> ranks(static_cast<std::size_t>(communicator_.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::erase(ranks, communicator_.rank());
  return ranks;
}

bool NcclCommunicator::finalize() noexcept {
  ncclResult_t state = ncclCommFinalize(comm_);
  Deadline deadline = Deadline::in(std::min<std::chrono::duration<double>>(communicator_.timeout(), kEndLimit));
  Backoff backoff;
  while (state == ncclInProgress && !deadline.passed()) {
    backoff.pause();
    if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return false;
  }
  return state == ncclSuccess;
}

void NcclCommunicator::abort() noexcept {
  if (comm_ == nullptr) return;
  std::promise<void> promise;
  const std::future<void> ended = promise.get_future();
  std::thread([comm = std::exchange(comm_, nullptr), told = std::move(promise)]() mutable {
    (void)ncclCommAbort(comm);
    told.set_value();
  }).detach();
  (void)ended.wait_for(kEndLimit);
}

void NcclCommunicator::fail(ExitCode code, const std::string& text) {
  failure_ = text;
  abort();
  throw Error(code, text);
}

void NcclCommunicator::check(ncclResult_t result, std::string_view stage) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  fail(exit_code_of(result, started_), fmt::format("rank {}: stage '{}': NCCL: {} ({})", communicator_.rank(), stage,
                                                   ncclGetErrorString(result), ncclGetLastError(comm_)));
}

void NcclCommunicator::check_running(std::string_view stage) {
  if (failure_.empty()) return;
  fail_peer(
      fmt::format("rank {}: stage '{}': refused after an earlier failure ({})", communicator_.rank(), stage, failure_));
}

void NcclCommunicator::await_ready(std::string_view stage, std::span<const int> peers) {
  Deadline deadline = Deadline::in(communicator_.timeout());
  Backoff backoff;
  for (;;) {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &state), stage);
    check(state, stage);
    if (state == ncclSuccess) return;
    if (deadline.passed()) {
      fail(ExitCode::kPeer, waited_text(communicator_.rank(), stage, communicator_.timeout(), peers));
    }
    backoff.pause();
  }
}

void NcclCommunicator::exchange(std::string_view stage, std::span<const Outgoing> sends,
                                std::span<const Incoming> receives, cudaStream_t stream) {
  check_running(stage);
  if (sends.empty() && receives.empty()) return;
  std::vector<int> peers;
  ncclResult_t result = ncclGroupStart();
  const auto post = [&](int peer, ncclResult_t posted) {
    if (result == ncclSuccess && posted != ncclInProgress) result = posted;
    if (std::ranges::find(peers, peer) == peers.end()) peers.push_back(peer);
  };
  for (const Incoming& message : receives) {
    post(message.peer, ncclRecv(message.memory.data(), message.memory.size(), ncclUint8, message.peer, comm_, stream));
  }
  for (const Outgoing& message : sends) {
    post(message.peer, ncclSend(message.memory.data(), message.memory.size(), ncclUint8, message.peer, comm_, stream));
  }
  const ncclResult_t ended = ncclGroupEnd();
  check(result, stage);
  check(ended, stage);
  await_ready(stage, peers);
}

void NcclCommunicator::wait(std::string_view stage, const ringmark::cuda::Event& done, std::span<const int> peers) {
  Deadline deadline = Deadline::in(communicator_.timeout());
  Backoff backoff;
  while (!reached(done)) {
    check_running(stage);
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &state), stage);
    check(state, stage);
    if (deadline.passed()) {
      fail(ExitCode::kPeer, waited_text(communicator_.rank(), stage, communicator_.timeout(), peers));
    }
    backoff.pause();
  }
  check_running(stage);  // the end of aborted messages is not their arrival
}

std::unique_ptr<PendingReads> NcclCommunicator::pending(std::string_view stage, cudaStream_t stream,
                                                        std::vector<CopyLists::Lease> leases, std::vector<int> peers) {
  return std::make_unique<PendingMessages>(*this, stage, stream, std::move(leases), std::move(peers));
}

std::unique_ptr<PendingReads> NcclCommunicator::gather_device(std::string_view stage, ConstBytes mine,
                                                              std::span<const Bytes> all, cudaStream_t stream) {
  const auto ranks = static_cast<std::size_t>(communicator_.size());
  const auto self = static_cast<std::size_t>(communicator_.rank());
  require(all.size() == ranks && all[self].size() == mine.size(), "a gather has one buffer per rank, of its size");
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for (std::size_t step = 1; step < ranks; ++step) {
    const std::size_t reader = (self + step) % ranks;
    const std::size_t owner = (self + ranks - step) % ranks;
    if (!mine.empty()) sends.push_back({static_cast<int>(reader), mine});
    if (!all[owner].empty()) receives.push_back({static_cast<int>(owner), all[owner]});
  }
  if (!mine.empty() && all[self].data() != mine.data()) {
    ringmark::cuda::check(cudaMemcpyAsync(all[self].data(), mine.data(), mine.size(), cudaMemcpyDeviceToDevice, stream),
                          "copy this rank's part of a gather");
  }
  exchange(stage, sends, receives, stream);
  return pending(stage, stream, {}, others());
}

}  // namespace ringmark::comm::cuda
