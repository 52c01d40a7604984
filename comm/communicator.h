// Ranks and bytes. A Communicator knows nothing of chunks or tensors; every rank calls the same collectives in the same
// order. Two implementations: MpiCommunicator (mpi_communicator.h) and ThreadRanks (thread_ranks.h, ranks as threads of
// one process, for tests and for embedding).
//
// All sizes are 64-bit; messages over the 2^31 limits of MPI are split inside. Every wait ends at the timeout with
// Error(kPeer) naming the rank, the stage and the peers it waited for.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringmark::comm {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// An exchange that goes on while this rank works.
class StartedExchange {
 public:
  virtual ~StartedExchange() = default;
  // Once, until everything has arrived and what was sent may be changed. The timeout begins here, since this rank may
  // have worked for long, and peers may honestly take `allowance` longer.
  virtual void wait(std::chrono::duration<double> allowance) = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Ranks on this host, this one included.
  virtual int host_ranks() const = 0;
  // True when all ranks live in one process, so that an address of one is valid on every other.
  virtual bool shares_address_space() const = 0;
  // Longest time any one wait may take.
  virtual std::chrono::duration<double> timeout() const = 0;

  // Collective. `stage` names the work in error messages.
  void barrier(std::string_view stage) { barrier(stage, std::chrono::seconds(0)); }
  // The same after work of uneven length: peers may honestly take `allowance` longer than the timeout.
  virtual void barrier(std::string_view stage, std::chrono::duration<double> allowance) = 0;

  // Collective: every rank's bytes to every rank. all[r] receives what rank r sends and has exactly that size (sizes
  // are known to both sides; use gather_sizes where they are not). all[rank()] receives a copy of `mine`.
  virtual void all_gather(std::string_view stage, ConstBytes mine, std::span<const Bytes> all) = 0;

  // Collective: send[r] goes to rank r, receive[r] takes what rank r sends. Sizes agree pairwise; zero is allowed and
  // sends no message.
  virtual void all_to_all(std::string_view stage, std::span<const ConstBytes> send, std::span<const Bytes> receive) = 0;

  // Collective: the same, but returns at once. Several may be under way and other collectives may be called meanwhile;
  // `stage` and the memory of all messages outlive the wait.
  virtual std::unique_ptr<StartedExchange> start_all_to_all(std::string_view stage, std::span<const ConstBytes> send,
                                                            std::span<const Bytes> receive) = 0;

  // Collective, element-wise, in rank order: same bits on every rank.
  virtual void all_reduce_sum(std::string_view stage, std::span<std::int64_t> values) = 0;
  virtual void all_reduce_max(std::string_view stage, std::span<std::int64_t> values) = 0;
  virtual void all_reduce_max(std::string_view stage, std::span<double> values) = 0;

  // Wakes ranks that wait for this one and ends the job with `code`; from any thread.
  virtual void abort(int code) noexcept = 0;

  // Collective: one int64 a rank, by rank.
  std::vector<std::int64_t> gather_sizes(std::string_view stage, std::int64_t mine);
  // Collective: what each rank brings, of any length, by rank.
  std::vector<std::vector<std::byte>> gather_bytes(std::string_view stage, ConstBytes mine);
  std::vector<std::string> gather_texts(std::string_view stage, std::string_view mine);

 private:
  template <class Buffer>
  std::vector<Buffer> gather_buffers(std::string_view stage, ConstBytes mine);
};

}  // namespace ringmark::comm
