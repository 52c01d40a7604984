#include "comm/mpi_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "comm/background_progress.h"
#include "comm/copy_bytes.h"
#include "comm/mpi_error.h"
#include "comm/mpi_session.h"
#include "comm/peer_requests.h"
#include "comm/rank_order_reduce.h"
#include "comm/uncancellable_wait.h"
#include "core/error.h"

namespace ringmark::comm {
namespace {

// One tag is enough: every rank calls the same collectives in the same order, and MPI keeps the order of messages
// between two ranks.
constexpr int kExchangeTag = 1;

std::vector<int> find_ranks_of_host(MPI_Comm comm, int rank, std::chrono::duration<double> limit) {
  constexpr std::string_view kStage = "find the ranks of this host";
  const UncancellableWait wait(rank, kStage, limit);
  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host), rank, kStage,
            "MPI_Comm_split_type");
  int count = 0;
  MPI_Comm_size(host, &count);
  std::vector<int> ranks_on_host(static_cast<std::size_t>(count));
  std::iota(ranks_on_host.begin(), ranks_on_host.end(), 0);
  std::vector<int> ranks(ranks_on_host.size());
  MPI_Group host_group = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm_group(host, &host_group);
  MPI_Comm_group(comm, &group);
  check_mpi(MPI_Group_translate_ranks(host_group, count, ranks_on_host.data(), group, ranks.data()), rank, kStage,
            "MPI_Group_translate_ranks");
  MPI_Group_free(&host_group);
  MPI_Group_free(&group);
  MPI_Comm_free(&host);
  return ranks;
}

// Calls start(part) for consecutive parts of at most `limit` bytes; none for an empty message.
template <class Message, class Start>
void for_each_slice(Message message, std::int64_t limit, Start start) {
  while (!message.empty()) {
    const Message part = message.first(std::min(message.size(), static_cast<std::size_t>(limit)));
    start(part);
    message = message.subspan(part.size());
  }
}

}  // namespace

MpiCommunicator::MpiCommunicator(MPI_Comm parent, MpiOptions options)
    : comm_(parent, "open the communicator", options.timeout), options_(options) {
  require(options.slice_bytes > 0 && options.slice_bytes <= std::numeric_limits<int>::max(),
          "MPI messages are split into slices of 1 byte to 2^31-1 bytes");
  MPI_Comm_rank(comm_.get(), &rank_);
  MPI_Comm_size(comm_.get(), &size_);
  ranks_of_host_ = find_ranks_of_host(comm_.get(), rank_, options_.timeout);
}

void MpiCommunicator::barrier(std::string_view stage, std::chrono::duration<double> allowance) {
  const std::byte here{1};
  std::vector<std::byte> others(static_cast<std::size_t>(size_));
  std::vector<Bytes> receive;
  for (std::byte& other : others) receive.emplace_back(&other, 1);
  exchange(stage, std::vector<ConstBytes>(others.size(), ConstBytes(&here, 1)), receive, allowance);
}

void MpiCommunicator::all_gather(std::string_view stage, ConstBytes mine, std::span<const Bytes> all) {
  exchange(stage, std::vector<ConstBytes>(all.size(), mine), all);
}

void MpiCommunicator::all_to_all(std::string_view stage, std::span<const ConstBytes> send,
                                 std::span<const Bytes> receive) {
  exchange(stage, send, receive);
}

// Requests that a thread keeps moving until they are waited for.
class MpiCommunicator::StartedRequests final : public StartedExchange {
 public:
  StartedRequests(MpiCommunicator& communicator, std::string_view stage, std::span<const ConstBytes> send,
                  std::span<const Bytes> receive)
      : communicator_(communicator), stage_(stage), requests_(communicator.rank_) {
    communicator_.start(requests_, stage, send, receive);
    progress_.emplace(requests_, stage);
  }

  ~StartedRequests() override {
    progress_.reset();
    if (!requests_.empty()) communicator_.fail("an exchange was given up");
  }

  void wait(std::chrono::duration<double> allowance) override {
    try {
      progress_->stop();
      requests_.wait(stage_, communicator_.options_.timeout + allowance);
    } catch (const Error& error) {
      communicator_.fail(error.what());
      throw;
    }
  }

 private:
  MpiCommunicator& communicator_;
  std::string_view stage_;
  PeerRequests requests_;
  std::optional<BackgroundProgress> progress_;
};

std::unique_ptr<StartedExchange> MpiCommunicator::start_all_to_all(std::string_view stage,
                                                                   std::span<const ConstBytes> send,
                                                                   std::span<const Bytes> receive) {
  return std::make_unique<StartedRequests>(*this, stage, send, receive);
}

void MpiCommunicator::exchange(std::string_view stage, std::span<const ConstBytes> send, std::span<const Bytes> receive,
                               std::chrono::duration<double> allowance) {
  PeerRequests requests(rank_);
  start(requests, stage, send, receive);
  try {
    requests.wait(stage, options_.timeout + allowance);
  } catch (const Error& error) {
    fail(error.what());
    throw;
  }
}

void MpiCommunicator::start(PeerRequests& requests, std::string_view stage, std::span<const ConstBytes> send,
                            std::span<const Bytes> receive) {
  const auto ranks = static_cast<std::size_t>(size_);
  const auto self = static_cast<std::size_t>(rank_);
  require(send.size() == ranks && receive.size() == ranks, "a collective has one buffer per rank");
  require(send[self].size() == receive[self].size(), "a rank sends itself as much as it receives from itself");
  check_not_failed(stage);
  copy_bytes(send[self], receive[self]);
  try {
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + size_ - step) % size_;
      for_each_slice(receive[static_cast<std::size_t>(peer)], options_.slice_bytes,
                     [&](Bytes part) { requests.receive(comm_.get(), peer, kExchangeTag, part); });
    }
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      for_each_slice(send[static_cast<std::size_t>(peer)], options_.slice_bytes,
                     [&](ConstBytes part) { requests.send(comm_.get(), peer, kExchangeTag, part); });
    }
  } catch (const Error& error) {
    fail(error.what());
    throw;
  }
}

void MpiCommunicator::fail(std::string_view why) {
  failure_ = why;
  comm_.abandon();
}

void MpiCommunicator::check_not_failed(std::string_view stage) const {
  if (failure_.empty()) return;
  fail_peer(fmt::format("rank {}: stage '{}': refused after an earlier failure ({})", rank_, stage, failure_));
}

void MpiCommunicator::all_reduce_sum(std::string_view stage, std::span<std::int64_t> values) {
  all_reduce_in_rank_order(*this, stage, values, sum_of);
}

void MpiCommunicator::all_reduce_max(std::string_view stage, std::span<std::int64_t> values) {
  all_reduce_in_rank_order(*this, stage, values, max_of<std::int64_t>);
}

void MpiCommunicator::all_reduce_max(std::string_view stage, std::span<double> values) {
  all_reduce_in_rank_order(*this, stage, values, max_of<double>);
}

void MpiCommunicator::abort(int code) noexcept { MpiSession::abort(code); }

std::shared_ptr<OwnedComm> MpiCommunicator::duplicate(std::string_view stage) {
  barrier(stage);  // names who is missing, which MPI_Comm_dup does not
  return std::make_shared<OwnedComm>(comm_.get(), stage, options_.timeout);
}

}  // namespace ringmark::comm
