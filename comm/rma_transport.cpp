#include "comm/rma_transport.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "comm/arena.h"
#include "comm/copy_bytes.h"
#include "comm/mpi_error.h"
#include "comm/peer_requests.h"
#include "comm/read_runs.h"
#include "comm/shared_folder.h"
#include "comm/uncancellable_wait.h"
#include "core/error.h"

namespace ringmark::comm {
namespace {

constexpr std::string_view kExposing = "expose a region";

class PendingWindowReads final : public PendingReads {
 public:
  PendingWindowReads(int rank, std::chrono::duration<double> timeout) : timeout_(timeout), requests_(rank) {}
  ~PendingWindowReads() override {
    if (requests_.empty()) return;
    try {
      wait();
    } catch (const Error&) {
      // Nobody is left to tell: the destinations are not used by a caller who never called wait().
    }
  }

  PeerRequests& requests() { return requests_; }

  void wait() override {
    if (!requests_.empty()) requests_.wait("block reads", timeout_);
  }

 private:
  std::chrono::duration<double> timeout_;
  PeerRequests requests_;
};

std::int64_t add_saturated(std::int64_t a, std::int64_t b) {
  return a > std::numeric_limits<std::int64_t>::max() - b ? std::numeric_limits<std::int64_t>::max() : a + b;
}

// A host without the folder, or one that cannot be asked, is left to MPI's own error.
std::int64_t free_shared_memory() {
  struct statvfs found {};
  if (statvfs(kSharedMemory, &found) != 0) return std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(found.f_bavail) * static_cast<std::int64_t>(found.f_frsize);
}

}  // namespace

RmaTransport::RmaTransport(MpiCommunicator& communicator, std::chrono::duration<double> read_timeout)
    : communicator_(communicator),
      read_timeout_(read_timeout),
      wire_(communicator.duplicate("open the rma transport")),
      table_(communicator.rank()) {}

Bytes RmaTransport::expose(std::int64_t bytes) {
  require(bytes >= 0, "a region has no negative size");
  std::vector<std::int64_t> sizes = communicator_.gather_sizes(kExposing, bytes);
  check_shared_memory(sizes);
  // Where MPI places a region depends on the sizes of the ranks before it: room to align it here.
  void* start = nullptr;
  Window window;
  const auto allocated = static_cast<MPI_Aint>(bytes + static_cast<std::int64_t>(kArenaAlignment));
  const int code = [&] {
    const UncancellableWait wait(communicator_.rank(), kExposing, communicator_.timeout());
    return MPI_Win_allocate(allocated, 1, MPI_INFO_NULL, wire_->get(), &start, &window.handle);
  }();
  std::int64_t failed = code == MPI_SUCCESS ? 0 : 1;
  communicator_.all_reduce_max(kExposing, std::span(&failed, 1));
  if (failed != 0) {
    fail_environment(fmt::format("rank {}: MPI_Win_allocate of {} bytes failed: {}", communicator_.rank(), bytes,
                                 code == MPI_SUCCESS ? "on another rank" : mpi_error_text(code)));
  }
  check(MPI_Win_set_errhandler(window.handle, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler");
  check(MPI_Win_lock_all(MPI_MODE_NOCHECK, window.handle), "MPI_Win_lock_all");
  const auto misaligned = reinterpret_cast<std::uintptr_t>(start) % kArenaAlignment;
  const std::size_t base = misaligned == 0 ? 0 : kArenaAlignment - misaligned;
  window.memory = Bytes(static_cast<std::byte*>(start) + base, static_cast<std::size_t>(bytes));
  window.base = communicator_.gather_sizes(kExposing, static_cast<std::int64_t>(base));
  table_.add(std::move(sizes));
  return windows_.emplace_back(std::move(window)).memory;
}

void RmaTransport::check_room(std::int64_t bytes) {
  check_shared_memory(communicator_.gather_sizes("check shared memory", bytes));
}

void RmaTransport::check_shared_memory(std::span<const std::int64_t> sizes) {
  std::int64_t needed = 0;
  for (const int rank : communicator_.ranks_of_host()) {
    needed = add_saturated(needed, sizes[static_cast<std::size_t>(rank)]);
  }
  const auto needs = communicator_.gather_sizes(kExposing, needed);
  const auto frees = communicator_.gather_sizes(kExposing, free_shared_memory());
  for (std::size_t r = 0; r < needs.size(); ++r) {
    if (needs[r] <= frees[r]) continue;
    fail_environment(
        fmt::format("rank {}: the regions of the host of rank {} need {} bytes of {}, {} are free; use the request "
                    "transport or enlarge {}",
                    communicator_.rank(), r, needs[r], kSharedMemory, frees[r], kSharedMemory));
  }
}

void RmaTransport::publish() {
  for (const Window& window : windows_) check(MPI_Win_sync(window.handle), "MPI_Win_sync");
  communicator_.barrier("publish regions");
  for (const Window& window : windows_) check(MPI_Win_sync(window.handle), "MPI_Win_sync");
  table_.publish();
}

std::unique_ptr<PendingReads> RmaTransport::get(std::span<const RemoteRead> reads) {
  table_.check(reads);
  const auto runs_of = merge_reads(reads, communicator_.size());
  auto pending = std::make_unique<PendingWindowReads>(communicator_.rank(), read_timeout_);
  for (int step = 1; step <= communicator_.size(); ++step) {
    const int peer = (communicator_.rank() + step) % communicator_.size();
    for (const ReadRun& run : runs_of[static_cast<std::size_t>(peer)]) {
      const Window& window = windows_[static_cast<std::size_t>(run.region)];
      if (peer == communicator_.rank()) {
        copy_bytes(window.memory.subspan(static_cast<std::size_t>(run.offset), run.destination.size()),
                   run.destination);
        continue;
      }
      std::int64_t from = window.base[static_cast<std::size_t>(peer)] + run.offset;
      for (Bytes left = run.destination; !left.empty();) {
        const Bytes part = left.first(std::min(left.size(), static_cast<std::size_t>(communicator_.slice_bytes())));
        pending->requests().read(window.handle, peer, from, part);
        from += static_cast<std::int64_t>(part.size());
        left = left.subspan(part.size());
      }
    }
  }
  return pending;
}

void RmaTransport::retire() {
  constexpr std::string_view kRetiring = "retire regions";
  communicator_.barrier(kRetiring);
  const UncancellableWait wait(communicator_.rank(), kRetiring, communicator_.timeout());
  for (Window& window : windows_) {
    check(MPI_Win_unlock_all(window.handle), "MPI_Win_unlock_all");
    check(MPI_Win_free(&window.handle), "MPI_Win_free");
  }
  windows_.clear();
  table_.clear();
}

void RmaTransport::check(int code, const char* operation) const {
  check_mpi(code, communicator_.rank(), "rma windows", operation);
}

}  // namespace ringmark::comm
