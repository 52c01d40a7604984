#include "comm/cuda/nccl_transport.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace ringmark::comm::cuda {
namespace {

constexpr std::string_view kReading = "block reads";
// Runs of this length and more leave and arrive in place: packing them would only cost.
constexpr std::size_t kAlone = std::size_t{4} << 20;

SliceRule rule_for(std::int64_t staging_bytes, int ranks) {
  const auto slots = static_cast<std::size_t>(std::max(ranks - 1, 1));
  const std::size_t slot = static_cast<std::size_t>(staging_bytes) / slots / kRegionAlignment * kRegionAlignment;
  return {.longest = slot, .alone = std::min(kAlone, slot)};
}

std::vector<RequestedRun> requests_of(std::span<const ReadRun> runs) {
  std::vector<RequestedRun> requests;
  for (const ReadRun& run : runs) {
    requests.push_back({run.offset, static_cast<std::int64_t>(run.destination.size()), run.region});
  }
  return requests;
}

template <class T>
std::vector<ConstBytes> bytes_of(const std::vector<std::vector<T>>& lists) {
  std::vector<ConstBytes> bytes;
  for (const auto& list : lists) bytes.push_back(std::as_bytes(std::span(list)));
  return bytes;
}

template <class T>
std::vector<Bytes> writable_bytes_of(std::vector<std::vector<T>>& lists) {
  std::vector<Bytes> bytes;
  for (auto& list : lists) bytes.push_back(std::as_writable_bytes(std::span(list)));
  return bytes;
}

}  // namespace

NcclTransport::NcclTransport(Communicator& communicator, std::int64_t staging_bytes)
    : communicator_(communicator),
      table_(communicator.rank()),
      outgoing_(allocate_device_on_all_ranks(communicator, communicator.size() > 1 ? staging_bytes : 0)),
      incoming_(allocate_device_on_all_ranks(communicator, communicator.size() > 1 ? staging_bytes : 0)),
      nccl_(communicator) {
  require(rule_for(staging_bytes, communicator.size()).longest > 0, "every peer has its part of the staging memory");
}

Bytes NcclTransport::expose(std::int64_t bytes) {
  AgreedDeviceArena agreed = allocate_device_on_all_ranks(communicator_, bytes);
  table_.add(std::move(agreed.sizes));
  return arenas_.emplace_back(std::move(agreed.arena))->bytes();
}

void NcclTransport::publish() {
  wait_for_gpu("publish regions");
  communicator_.barrier("publish regions");
  table_.publish();
  published_ = arenas_.size();
}

std::unique_ptr<PendingReads> NcclTransport::get(std::span<const RemoteRead> reads) {
  table_.check(reads);
  const RunsByRank runs_of = merge_reads(reads, communicator_.size());
  const auto self = static_cast<std::size_t>(communicator_.rank());
  auto wanted_by = tell_and_hear(runs_of);
  std::vector<std::vector<Bytes>> wanted_from(runs_of.size());
  std::vector<Copy> own;
  std::vector<int> peers;
  for (std::size_t r = 0; r < runs_of.size(); ++r) {
    for (const ReadRun& run : runs_of[r]) wanted_from[r].push_back(run.destination);
    if (r != self && !(wanted_by[r].empty() && wanted_from[r].empty())) peers.push_back(static_cast<int>(r));
  }
  for (std::size_t i = 0; i < wanted_by[self].size(); ++i) {
    const ConstBytes run = wanted_by[self][i];
    own.push_back({run.data(), wanted_from[self][i].data(), static_cast<std::int64_t>(run.size())});
  }
  wanted_by[self].clear();
  wanted_from[self].clear();

  const Staging staging{outgoing_.arena->bytes(), incoming_.arena->bytes(),
                        rule_for(outgoing_.sizes[self], communicator_.size())};
  std::vector<CopyLists::Lease> leases;
  leases.push_back(lists_.enqueue(own, Reach::kOwnMemory, stream_));
  for (const Round& round : plan_rounds(communicator_.rank(), wanted_by, wanted_from, staging)) {
    leases.push_back(lists_.enqueue(round.pack, Reach::kOwnMemory, stream_));
    nccl_.exchange(kReading, round.sends, round.receives, stream_);
    leases.push_back(lists_.enqueue(round.unpack, Reach::kOwnMemory, stream_));
  }
  return nccl_.pending(kReading, stream_, std::move(leases), std::move(peers));
}

std::vector<std::vector<ConstBytes>> NcclTransport::tell_and_hear(const RunsByRank& runs_of) {
  std::vector<std::vector<RequestedRun>> mine;
  std::vector<std::vector<std::int64_t>> my_counts;
  for (const auto& runs : runs_of) {
    mine.push_back(requests_of(runs));
    my_counts.push_back({static_cast<std::int64_t>(runs.size())});
  }
  std::vector<std::vector<std::int64_t>> counts(runs_of.size(), std::vector<std::int64_t>(1));
  communicator_.all_to_all(kReading, bytes_of(my_counts), writable_bytes_of(counts));
  std::vector<std::vector<RequestedRun>> asked;
  for (const auto& count : counts) asked.emplace_back(static_cast<std::size_t>(count[0]));
  communicator_.all_to_all(kReading, bytes_of(mine), writable_bytes_of(asked));
  std::vector<std::vector<ConstBytes>> wanted_by(asked.size());
  for (std::size_t r = 0; r < asked.size(); ++r) {
    for (const RequestedRun& run : asked[r]) {
      wanted_by[r].push_back(own_run(static_cast<int>(r), run.region, run.offset, run.length));
    }
  }
  return wanted_by;
}

// Checked again: a request is input.
ConstBytes NcclTransport::own_run(int reader, std::int64_t region, std::int64_t offset, std::int64_t bytes) const {
  if (region >= 0 && region < static_cast<std::int64_t>(published_)) {
    const Bytes memory = arenas_[static_cast<std::size_t>(region)]->bytes();
    if (bytes > 0 && lies_inside(offset, bytes, static_cast<std::int64_t>(memory.size()))) {
      return memory.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
    }
  }
  throw Error(ExitCode::kInternal,
              fmt::format("internal error: rank {}: rank {} asks for {} bytes at offset {} of region {}",
                          communicator_.rank(), reader, bytes, offset, region));
}

const std::byte* NcclTransport::peer_address(int rank, int region) const {
  require(region >= 0 && static_cast<std::size_t>(region) < published_ && rank >= 0 && rank < communicator_.size(),
          "addresses are of published regions");
  return rank == communicator_.rank() ? arenas_[static_cast<std::size_t>(region)]->bytes().data() : nullptr;
}

// With an end also when a peer never sends what this stream waits for.
void NcclTransport::wait_for_gpu(std::string_view stage) {
  ringmark::cuda::Event reads_done;
  reads_done.record(stream_);
  nccl_.wait(stage, reads_done, nccl_.others());
  ringmark::cuda::check(cudaDeviceSynchronize(), "wait for the GPU");
}

void NcclTransport::retire() {
  wait_for_gpu("retire regions");
  communicator_.barrier("retire regions");
  table_.clear();
  arenas_.clear();
  published_ = 0;
}

}  // namespace ringmark::comm::cuda
