#include "comm/request_server.h"

#include <fmt/format.h>

#include <chrono>

#include "comm/backoff.h"
#include "comm/deadline.h"
#include "comm/mpi_error.h"
#include "core/error.h"

namespace ringmark::comm {
namespace {

// Replies in flight at once: bounds the memory of packed slices to 32 MiB.
constexpr std::size_t kRepliesInFlight = 32;
// Readers are gone when a server stops; a reply that nobody takes within this time never leaves.
constexpr std::chrono::seconds kDrainTime{1};

}  // namespace

RequestServer::RequestServer(std::shared_ptr<OwnedComm> wire) : wire_(std::move(wire)), inbox_(kLongestRequest) {
  MPI_Comm_rank(wire_->get(), &rank_);
  thread_ = std::thread([this] { run(); });
}

RequestServer::~RequestServer() {
  stop_ = true;
  thread_.join();
}

void RequestServer::serve(std::shared_ptr<const Regions> regions) {
  const std::lock_guard lock(mutex_);
  regions_ = std::move(regions);
}

void RequestServer::check_running() const {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) fail_peer(failure_);
}

void RequestServer::run() noexcept {
  try {
    listen();
    Backoff backoff;
    while (!stop_) {
      bool moved = accept_request();
      moved |= start_replies();
      moved |= finish_replies();
      if (moved) {
        backoff.reset();
      } else {
        backoff.pause();
      }
    }
    stop_listening();
    drain_replies();
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    failure_ = error.what();
    wire_->abandon();
  }
}

void RequestServer::listen() {
  check(MPI_Irecv(inbox_.data(), static_cast<int>(inbox_.size()), MPI_BYTE, MPI_ANY_SOURCE, kRequestTag, wire_->get(),
                  &incoming_),
        "MPI_Irecv");
}

bool RequestServer::accept_request() {
  int arrived = 0;
  MPI_Status status;
  check(MPI_Test(&incoming_, &arrived, &status), "MPI_Test");
  if (!arrived) return false;
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  answer(status.MPI_SOURCE, ConstBytes(inbox_).first(static_cast<std::size_t>(bytes)));
  listen();
  return true;
}

void RequestServer::answer(int peer, ConstBytes message) {
  std::shared_ptr<const Regions> regions;
  {
    const std::lock_guard lock(mutex_);
    regions = regions_;
  }
  std::vector<ConstBytes> memory;
  if (regions != nullptr) {
    for (const auto& arena : *regions) memory.push_back(arena->bytes());
  }
  const auto head = decode_head(message);
  if (!head)
    fail_peer(fmt::format("rank {}: a request of {} bytes from rank {} has no head", rank_, message.size(), peer));
  const int tag = reply_tag(head->sequence);
  auto slices = decode_request(message, memory);
  if (!slices) {  // refused: the reader finds its messages too short
    for (std::uint32_t i = 0; i < head->slices; ++i) waiting_.emplace_back(peer, tag);
    return;
  }
  for (auto& slice : *slices) {
    Reply& reply = waiting_.emplace_back(peer, tag);
    reply.slice = std::move(slice);
    reply.keeps_alive = regions;
  }
}

bool RequestServer::start_replies() {
  bool moved = false;
  while (!waiting_.empty() && sending_.size() < kRepliesInFlight) {
    Reply& reply = *sending_.emplace_back(std::make_unique<Reply>(std::move(waiting_.front())));
    waiting_.pop_front();
    const std::vector<ConstBytes>& pieces = reply.slice.pieces;
    ConstBytes message;
    if (pieces.size() == 1) {
      message = pieces[0];
    } else {
      reply.packed.reserve(reply.slice.bytes);
      for (const ConstBytes piece : pieces) reply.packed.insert(reply.packed.end(), piece.begin(), piece.end());
      message = reply.packed;
    }
    check(MPI_Isend(message.data(), static_cast<int>(message.size()), MPI_BYTE, reply.peer, reply.tag, wire_->get(),
                    &reply.request),
          "MPI_Isend");
    moved = true;
  }
  return moved;
}

bool RequestServer::finish_replies() {
  const std::size_t before = sending_.size();
  std::erase_if(sending_, [this](const std::unique_ptr<Reply>& reply) {
    int sent = 0;
    check(MPI_Test(&reply->request, &sent, MPI_STATUS_IGNORE), "MPI_Test");
    return sent != 0;
  });
  return sending_.size() != before;
}

void RequestServer::stop_listening() {
  check(MPI_Cancel(&incoming_), "MPI_Cancel");
  check(MPI_Wait(&incoming_, MPI_STATUS_IGNORE), "MPI_Wait");
}

void RequestServer::drain_replies() {
  Deadline deadline = Deadline::in(kDrainTime);
  Backoff backoff;
  while (!sending_.empty() && !deadline.passed()) {
    if (!finish_replies()) backoff.pause();
  }
  if (sending_.empty() && waiting_.empty()) return;
  wire_->abandon();
  for (auto& reply : sending_) {
    // MPI may still read this memory: better lost than reused.
    (void)reply.release();
  }
}

void RequestServer::check(int code, const char* operation) const { check_mpi(code, rank_, "serve reads", operation); }

}  // namespace ringmark::comm
