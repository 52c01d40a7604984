#include "comm/ucx_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "comm/arena.h"
#include "comm/backoff.h"
#include "comm/copy_bytes.h"
#include "comm/current_wait.h"
#include "comm/deadline.h"
#include "comm/peer_failure.h"
#include "comm/read_runs.h"
#include "comm/received_bytes.h"
#include "comm/ucx_reader.h"
#include "core/error.h"

namespace ringmark::comm {
namespace {

constexpr std::string_view kOpening = "open the ucx transport";
constexpr std::string_view kExposing = "expose a region";
constexpr std::string_view kReading = "block reads";

class PendingUcxReads final : public PendingReads {
 public:
  PendingUcxReads(std::shared_ptr<UcxReader> reader, std::chrono::duration<double> timeout, int ranks)
      : reader_(std::move(reader)),
        timeout_(timeout),
        owed_(std::make_unique<std::vector<UcxReader::Owed>>(static_cast<std::size_t>(ranks))) {}
  ~PendingUcxReads() override {
    try {
      wait();
    } catch (const Error&) {
      // Nobody is left to tell: the destinations are not used by a caller who never called wait().
    }
  }

  void start(std::span<const UcxReader::Piece> pieces) {
    for (const UcxReader::Piece& piece : pieces) bytes_ += static_cast<std::int64_t>(piece.destination.size());
    reader_->start(pieces, *owed_);
  }

  void wait() override {
    if (owed_ == nullptr) return;
    try {
      finish();
    } catch (const Error&) {
      reader_->abandon();
      // Reads that are still under way will report here: better lost than reused.
      (void)owed_.release();
      throw;
    }
    owed_.reset();
  }

 private:
  void finish() {
    const auto begin = Deadline::Clock::now();
    Deadline deadline = Deadline::in(timeout_);
    Backoff backoff;
    NotedWait noted;
    while (true) {
      if (reader_->progress(*owed_)) {
        backoff.reset();
        continue;
      }
      const std::vector<int> late = reader_->late_peers(*owed_);
      if (late.empty()) {
        ReceivedBytes::add(bytes_);
        return;
      }
      const auto waited = Deadline::Clock::now() - begin;
      if (deadline.passed()) fail_peer(waited_text(reader_->rank(), kReading, waited, late));
      if (noted.due()) noted.note(kReading, late, bytes_);
      backoff.pause();
    }
  }

  std::shared_ptr<UcxReader> reader_;
  std::chrono::duration<double> timeout_;
  std::int64_t bytes_ = 0;
  std::unique_ptr<std::vector<UcxReader::Owed>> owed_;  // null when nothing is pending
};

// Collective: when one rank has failed to open UCX, every rank throws Error(kEnvironment).
void agree(Communicator& communicator, const std::string& failure) {
  std::int64_t failed = failure.empty() ? 0 : 1;
  communicator.all_reduce_max(kOpening, std::span(&failed, 1));
  if (failed == 0) return;
  fail_environment(failure.empty() ? fmt::format("rank {}: UCX failed on another rank", communicator.rank()) : failure);
}

}  // namespace

UcxTransport::UcxTransport(Communicator& communicator, std::span<const int> ranks_of_host,
                           std::chrono::duration<double> read_timeout, std::optional<SpillPolicy> spill)
    : communicator_(communicator), read_timeout_(read_timeout), spill_(std::move(spill)), table_(communicator.rank()) {
  std::string failure;
  try {
    open();
  } catch (const Error& error) {
    failure = error.what();
  }
  try {
    agree(communicator_, failure);
    connect(ranks_of_host);
    read_from_everyone();
  } catch (const Error&) {
    leave_to_the_end();
    throw;
  }
}

UcxTransport::~UcxTransport() {
  server_.reset();  // before the memory that it answers from
  if (reader_->abandoned() || std::uncaught_exceptions() > 0) leave_to_the_end();
}

void UcxTransport::leave_to_the_end() noexcept {
  server_.reset();
  for (Region& region : regions_) {
    (void)region.mapping.release();
    if (region.arena != nullptr) region.arena->leave_to_the_end();
    for (auto& key : region.keys) (void)key.release();
  }
  (void)context_.release();
}

void UcxTransport::open() {
  const int rank = communicator_.rank();
  context_ = open_ucx(rank, communicator_.host_ranks() == communicator_.size());
  server_ = std::make_unique<UcxServer>(context_.get(), rank);
  reader_ = std::make_shared<UcxReader>(context_.get(), rank, communicator_.size());
}

void UcxTransport::connect(std::span<const int> ranks_of_host) const {
  const auto addresses = communicator_.gather_bytes(kOpening, server_->address());
  for (int peer = 0; peer < communicator_.size(); ++peer) {
    if (peer == communicator_.rank()) continue;
    const bool same_host = std::ranges::find(ranks_of_host, peer) != ranks_of_host.end();
    reader_->connect(peer, addresses[static_cast<std::size_t>(peer)], same_host);
  }
}

void UcxTransport::read_from_everyone() {
  constexpr std::size_t kWord = 8;
  expose(kWord);
  publish();
  std::vector<std::byte> words(static_cast<std::size_t>(communicator_.size()) * kWord);
  std::vector<RemoteRead> reads;
  for (int peer = 0; peer < communicator_.size(); ++peer) {
    reads.push_back({peer, 0, 0, Bytes(words).subspan(static_cast<std::size_t>(peer) * kWord, kWord)});
  }
  std::string failure;
  try {
    get(reads)->wait();
  } catch (const Error& error) {
    failure = error.what();
  }
  agree(communicator_, failure);
  retire();
}

bool UcxTransport::map(Region& region, std::int64_t bytes) const {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = std::max(static_cast<std::size_t>(bytes), kArenaAlignment);
  if (region.arena != nullptr) {
    params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
    params.address = region.arena->bytes().data();
  } else {
    params.flags = UCP_MEM_MAP_ALLOCATE;
  }
  ucp_mem_h handle = nullptr;
  if (ucp_mem_map(context_.get(), &params, &handle) != UCS_OK) return false;
  region.mapping = {handle, UnmapMemory{context_.get()}};
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  check_ucx(ucp_mem_query(handle, &attributes), communicator_.rank(), "ucp_mem_query");
  region.memory = Bytes(static_cast<std::byte*>(attributes.address), static_cast<std::size_t>(bytes));
  return true;
}

// A rank's card: the address of its region, and the key that UCX wants for it.
void UcxTransport::exchange_keys(Region& region) const {
  const auto address = reinterpret_cast<std::uint64_t>(region.memory.data());
  void* packed = nullptr;
  std::size_t length = 0;
  check_ucx(ucp_rkey_pack(context_.get(), region.mapping.get(), &packed, &length), communicator_.rank(),
            "ucp_rkey_pack");
  std::vector<std::byte> card(sizeof(address) + length);
  std::memcpy(card.data(), &address, sizeof(address));
  std::memcpy(card.data() + sizeof(address), packed, length);
  ucp_rkey_buffer_release(packed);
  const auto cards = communicator_.gather_bytes(kExposing, card);
  region.addresses.resize(cards.size());
  region.keys.resize(cards.size());
  for (std::size_t peer = 0; peer < cards.size(); ++peer) {
    std::memcpy(&region.addresses[peer], cards[peer].data(), sizeof(address));
    if (static_cast<int>(peer) == communicator_.rank()) continue;
    ucp_rkey_h key = nullptr;
    check_ucx(ucp_ep_rkey_unpack(reader_->endpoint(static_cast<int>(peer)), cards[peer].data() + sizeof(address), &key),
              communicator_.rank(), "ucp_ep_rkey_unpack");
    region.keys[peer].reset(key);
  }
}

Bytes UcxTransport::expose(std::int64_t bytes) {
  require(bytes >= 0, "a region has no negative size");
  Region region;
  if (spill_) {
    region.arena = allocate_on_all_ranks(communicator_, bytes, spill_, table_.own_bytes()).arena;
  }
  std::vector<std::int64_t> sizes = agree_on_sizes(communicator_, bytes, map(region, bytes));
  exchange_keys(region);
  table_.add(std::move(sizes));
  return regions_.emplace_back(std::move(region)).memory;
}

void UcxTransport::publish() {
  communicator_.barrier("publish regions");
  table_.publish();
}

std::unique_ptr<PendingReads> UcxTransport::get(std::span<const RemoteRead> reads) {
  table_.check(reads);
  const auto runs_of = merge_reads(reads, communicator_.size());
  std::vector<UcxReader::Piece> pieces;
  for (int step = 1; step <= communicator_.size(); ++step) {
    const int peer = (communicator_.rank() + step) % communicator_.size();
    const auto slot = static_cast<std::size_t>(peer);
    for (const ReadRun& run : runs_of[slot]) {
      const Region& region = regions_[static_cast<std::size_t>(run.region)];
      if (peer == communicator_.rank()) {
        copy_bytes(region.memory.subspan(static_cast<std::size_t>(run.offset), run.destination.size()),
                   run.destination);
      } else {
        pieces.push_back({peer, region.addresses[slot] + static_cast<std::uint64_t>(run.offset),
                          region.keys[slot].get(), run.destination});
      }
    }
  }
  auto pending = std::make_unique<PendingUcxReads>(reader_, read_timeout_, communicator_.size());
  pending->start(pieces);
  return pending;
}

void UcxTransport::retire() {
  communicator_.barrier("retire regions");
  table_.clear();
  regions_.clear();
}

}  // namespace ringmark::comm
