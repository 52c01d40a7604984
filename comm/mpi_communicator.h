// The Communicator contract over MPI. Messages are nonblocking and point to point, one set of requests per peer, so
// that a timeout names exactly the peers that are missing; MPI's own collectives can be neither cancelled nor asked
// whom they wait for.
#pragma once

#include <mpi.h>

#include <chrono>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/owned_comm.h"
#include "comm/peer_requests.h"

namespace ringmark::comm {

struct MpiOptions {
  std::chrono::duration<double> timeout = std::chrono::seconds(120);
  // Longest single message; longer ones are split, by sender and receiver alike. MPI counts are int.
  std::int64_t slice_bytes = std::int64_t{1} << 30;
};

class MpiCommunicator final : public Communicator {
 public:
  // Collective over `parent`, which is duplicated. MPI stays initialised for longer than this object lives.
  explicit MpiCommunicator(MPI_Comm parent = MPI_COMM_WORLD, MpiOptions options = {});

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int host_ranks() const override { return static_cast<int>(ranks_of_host_.size()); }
  bool shares_address_space() const override { return size_ == 1; }
  std::chrono::duration<double> timeout() const override { return options_.timeout; }

  using Communicator::barrier;
  void barrier(std::string_view stage, std::chrono::duration<double> allowance) override;
  void all_gather(std::string_view stage, ConstBytes mine, std::span<const Bytes> all) override;
  void all_to_all(std::string_view stage, std::span<const ConstBytes> send, std::span<const Bytes> receive) override;
  std::unique_ptr<StartedExchange> start_all_to_all(std::string_view stage, std::span<const ConstBytes> send,
                                                    std::span<const Bytes> receive) override;
  void all_reduce_sum(std::string_view stage, std::span<std::int64_t> values) override;
  void all_reduce_max(std::string_view stage, std::span<std::int64_t> values) override;
  void all_reduce_max(std::string_view stage, std::span<double> values) override;
  // Does not return.
  void abort(int code) noexcept override;

  // Collective: a communicator of the same ranks for the messages of a transport.
  std::shared_ptr<OwnedComm> duplicate(std::string_view stage);
  // Ranks on this host, ascending, this one included.
  std::span<const int> ranks_of_host() const { return ranks_of_host_; }
  std::int64_t slice_bytes() const { return options_.slice_bytes; }

 private:
  class StartedRequests;

  void exchange(std::string_view stage, std::span<const ConstBytes> send, std::span<const Bytes> receive,
                std::chrono::duration<double> allowance = {});
  void start(PeerRequests& requests, std::string_view stage, std::span<const ConstBytes> send,
             std::span<const Bytes> receive);
  void fail(std::string_view why);
  void check_not_failed(std::string_view stage) const;

  OwnedComm comm_;
  MpiOptions options_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<int> ranks_of_host_;
  // First failure. Later collectives are refused: a late message of the failed one would be taken for theirs.
  std::string failure_;
};

}  // namespace ringmark::comm
