#include "comm/peer_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "comm/backoff.h"
#include "comm/current_wait.h"
#include "comm/deadline.h"
#include "comm/mpi_error.h"
#include "comm/peer_failure.h"
#include "comm/received_bytes.h"
#include "core/error.h"

namespace ringmark::comm {
namespace {

constexpr std::string_view kStarting = "start of a message";

}  // namespace

MPI_Request* PeerRequests::start(int peer, Kind kind, std::size_t bytes) {
  require(bytes <= static_cast<std::size_t>(std::numeric_limits<int>::max()), "an MPI message fits an int count");
  operations_.push_back({peer, kind, static_cast<std::int64_t>(bytes)});
  return &requests_.emplace_back(MPI_REQUEST_NULL);
}

void PeerRequests::send(MPI_Comm comm, int peer, int tag, ConstBytes message) {
  MPI_Request* request = start(peer, Kind::kSend, message.size());
  const auto count = static_cast<int>(message.size());
  check_mpi(MPI_Isend(message.data(), count, MPI_BYTE, peer, tag, comm, request), rank_, kStarting, "MPI_Isend");
}

void PeerRequests::receive(MPI_Comm comm, int peer, int tag, Bytes message) {
  MPI_Request* request = start(peer, Kind::kReceive, message.size());
  const auto count = static_cast<int>(message.size());
  check_mpi(MPI_Irecv(message.data(), count, MPI_BYTE, peer, tag, comm, request), rank_, kStarting, "MPI_Irecv");
}

void PeerRequests::read(MPI_Win window, int peer, std::int64_t displacement, Bytes destination) {
  MPI_Request* request = start(peer, Kind::kOneSided, destination.size());
  const auto count = static_cast<int>(destination.size());
  check_mpi(MPI_Rget(destination.data(), count, MPI_BYTE, peer, displacement, count, MPI_BYTE, window, request), rank_,
            kStarting, "MPI_Rget");
}

void PeerRequests::wait(std::string_view stage, std::chrono::duration<double> timeout) {
  const auto begin = Deadline::Clock::now();
  Deadline deadline = Deadline::in(timeout);
  Backoff backoff;
  NotedWait noted;
  while (!poll(stage)) {
    const Deadline::Clock::duration waited = Deadline::Clock::now() - begin;
    if (deadline.passed()) give_up(stage, waited);
    if (noted.due()) {
      const Unfinished late = unfinished();
      noted.note(stage, {late.peers.begin(), late.peers.end()}, late.bytes);
    }
    backoff.pause();
  }
  check_sizes(stage);
  for (const Operation& operation : operations_) {
    if (operation.kind != Kind::kSend) ReceivedBytes::add(operation.bytes);
  }
  requests_.clear();
  operations_.clear();
  complete_ = false;
}

bool PeerRequests::poll(std::string_view stage) {
  if (complete_) return true;
  statuses_.resize(requests_.size());
  int complete = 0;
  const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &complete, statuses_.data());
  complete_ = code == MPI_SUCCESS && complete != 0;
  if (code == MPI_SUCCESS) return complete_;
  for (std::size_t i = 0; code == MPI_ERR_IN_STATUS && i < statuses_.size(); ++i) {
    const int error = statuses_[i].MPI_ERROR;
    if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
    const std::string text = fmt::format("rank {}: stage '{}': message of rank {} failed: {}{}", rank_, stage,
                                         operations_[i].peer, mpi_error_text(error), place_text());
    abandon();
    fail_peer(text);
  }
  abandon();
  check_mpi(code, rank_, stage, "MPI_Testall");
  return false;
}

void PeerRequests::give_up(std::string_view stage, std::chrono::duration<double> waited) {
  const std::set<int> late = unfinished().peers;
  abandon();
  fail_peer(waited_text(rank_, stage, waited, std::vector<int>(late.begin(), late.end())));
}

PeerRequests::Unfinished PeerRequests::unfinished() const {
  Unfinished late;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    int complete = 0;
    const int code = MPI_Request_get_status(requests_[i], &complete, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && complete) continue;
    late.peers.insert(operations_[i].peer);
    if (operations_[i].kind != Kind::kSend) late.bytes += operations_[i].bytes;
  }
  return late;
}

void PeerRequests::check_sizes(std::string_view stage) const {
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    const Operation& operation = operations_[i];
    if (operation.kind != Kind::kReceive) continue;
    int received = 0;
    MPI_Get_count(&statuses_[i], MPI_BYTE, &received);
    if (received != operation.bytes) {
      fail_peer(wrong_size_text(rank_, stage, operation.peer, received, operation.bytes));
    }
  }
}

void PeerRequests::abandon() noexcept {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    // MPI forbids both calls for one-sided operations: such a request can only be forgotten.
    if (requests_[i] == MPI_REQUEST_NULL || operations_[i].kind == Kind::kOneSided) continue;
    if (operations_[i].kind == Kind::kReceive) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
  requests_.clear();
  operations_.clear();
}

}  // namespace ringmark::comm
