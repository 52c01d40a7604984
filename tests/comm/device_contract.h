// A device transport as the contract of all transports sees one: regions and destinations in host memory, mirrored on
// the GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/arena.h"
#include "comm/cuda/device_transport.h"
#include "core/cuda/buffer.h"
#include "core/cuda/stream.h"
#include "tests/comm/transport_contract.h"

namespace ringmark::comm::contract {

inline void copy_now(void* to, const void* from, std::size_t bytes) {
  ringmark::cuda::check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "copy between host and GPU");
  ringmark::cuda::check(cudaStreamSynchronize(nullptr), "wait for a copy");  // from pageable memory it may still run
}

inline void fill_device(Bytes memory, int rank, int region, int epoch) {
  std::vector<std::byte> host(memory.size());
  fill(host, rank, region, epoch);
  copy_now(memory.data(), host.data(), host.size());
}

inline std::vector<std::byte> download(ConstBytes memory) {
  std::vector<std::byte> host(memory.size());
  copy_now(host.data(), memory.data(), host.size());
  return host;
}

inline void expect_region_content(ConstBytes device, int rank, int region, int epoch, std::int64_t offset = 0) {
  const std::vector<std::byte> host = download(device);
  for (std::size_t i = 0; i < host.size(); ++i) {
    ASSERT_EQ(host[i], content(rank, region, epoch, offset + static_cast<std::int64_t>(i)))
        << "byte " << i << " of region " << region << " of rank " << rank;
  }
}

class HostView final : public BlockTransport {
 public:
  explicit HostView(cuda::DeviceTransport& inner) : inner_(inner) {}

  std::string_view name() const override { return inner_.name(); }

  Bytes expose(std::int64_t bytes) override {
    const Bytes device = inner_.expose(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device.data()) % cuda::kRegionAlignment, 0u);
    mirrors_.push_back({Arena::allocate(bytes), device});
    return mirrors_.back().host->bytes();
  }

  void publish() override {
    for (const Mirror& mirror : mirrors_) {
      copy_now(mirror.device.data(), mirror.host->bytes().data(), mirror.device.size());
    }
    inner_.publish();
  }

  std::unique_ptr<PendingReads> get(std::span<const RemoteRead> reads) override {
    auto pending = std::make_unique<Pending>(span_of(reads));
    std::vector<RemoteRead> device_reads;
    for (const RemoteRead& read : reads) {
      device_reads.push_back({read.peer, read.region, read.offset, pending->on_device(read.destination)});
    }
    pending->start(inner_.get(device_reads));
    return pending;
  }

  void retire() override {
    inner_.retire();
    mirrors_.clear();
  }

 private:
  struct Mirror {
    std::shared_ptr<Arena> host;
    Bytes device;
  };

  // From the first to the last byte that a batch writes.
  static Bytes span_of(std::span<const RemoteRead> reads) {
    std::byte* first = nullptr;
    std::byte* last = nullptr;
    for (const RemoteRead& read : reads) {
      if (read.destination.empty()) continue;
      std::byte* const end = read.destination.data() + read.destination.size();
      first = first == nullptr ? read.destination.data() : std::min(first, read.destination.data());
      last = last == nullptr ? end : std::max(last, end);
    }
    return Bytes(first, last);
  }

  // The memory between the destinations makes the way to the GPU and back, so that a stray write shows.
  class Pending final : public PendingReads {
   public:
    explicit Pending(Bytes host) : host_(host), device_(static_cast<std::int64_t>(host.size())) {
      copy_now(device_.data(), host_.data(), host_.size());
    }
    ~Pending() override {
      if (host_.empty() || inner_ == nullptr) return;
      inner_.reset();  // waits, if nobody has
      copy_now(host_.data(), device_.data(), host_.size());
    }
    Bytes on_device(Bytes destination) const {
      if (destination.empty()) return {};
      return {device_.data() + (destination.data() - host_.data()), destination.size()};
    }
    void start(std::unique_ptr<PendingReads> inner) { inner_ = std::move(inner); }
    void wait() override {
      inner_->wait();
      copy_now(host_.data(), device_.data(), host_.size());
    }

   private:
    Bytes host_;
    ringmark::cuda::Buffer<std::byte> device_;
    std::unique_ptr<PendingReads> inner_;
  };

  cuda::DeviceTransport& inner_;
  std::vector<Mirror> mirrors_;
};

inline void nothing_is_a_batch_too(Communicator& communicator, cuda::DeviceTransport& transport) {
  transport.expose(communicator.rank() == 0 ? 0 : 100);
  transport.publish();
  transport.get({})->wait();
  const RemoteRead empty{0, 0, 0, {}};
  transport.get(std::span(&empty, 1))->wait();
  transport.retire();
}

// All of the transport contract, through host memory.
inline void device_honours_the_contract(Communicator& communicator, cuda::DeviceTransport& transport) {
  HostView view(transport);
  honours_the_contract(communicator, view);
  long_reads_arrive_whole(communicator, view);
  impossible_regions_are_refused_on_every_rank(communicator, view);
  honours_the_contract(communicator, view);
  nothing_is_a_batch_too(communicator, transport);
}

// Nobody waits on the host: the reads follow what was enqueued before them, and a kernel that follows them sees them.
inline void reads_are_ordered_by_events(Communicator& communicator, cuda::DeviceTransport& transport) {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  fill_device(transport.expose(kBytes), communicator.rank(), 0, 3);
  transport.publish();
  const int peer = (communicator.rank() + 1) % communicator.size();
  ringmark::cuda::Buffer<std::byte> arrived(kBytes), seen(kBytes);
  ringmark::cuda::Stream compute;
  for (int repeat = 0; repeat < 3; ++repeat) {
    ringmark::cuda::Event free_to_write, here;
    arrived.fill_bytes(0x11, compute);  // an earlier user of the destination
    free_to_write.record(compute);
    free_to_write.hold(transport.stream());
    std::vector<RemoteRead> reads;
    constexpr std::size_t kPiece = 1 << 16;
    for (std::size_t at = 0; at < kBytes; at += kPiece) {
      const std::size_t from = kBytes - kPiece - at;  // no two of them join
      reads.push_back({peer, 0, static_cast<std::int64_t>(from), Bytes(arrived.data() + at, kPiece)});
    }
    const auto pending = transport.get(reads);
    here.record(transport.stream());
    here.hold(compute);
    ringmark::cuda::check(cudaMemcpyAsync(seen.data(), arrived.data(), kBytes, cudaMemcpyDeviceToDevice, compute),
                          "copy");
    compute.wait();
    for (const std::size_t at : {std::size_t{0}, kPiece * 17, kBytes - kPiece}) {
      expect_region_content(ConstBytes(seen.data() + at, kPiece), peer, 0, 3,
                            static_cast<std::int64_t>(kBytes - kPiece - at));
    }
  }
  transport.retire();
}

// A kernel may read where peer_address() says; what cannot be read has no address.
inline void peer_addresses_show_the_regions(Communicator& communicator, cuda::DeviceTransport& transport,
                                            bool reaches_peers) {
  TwoRegions::publish(communicator, *std::make_unique<HostView>(transport), 5);
  for (int rank = 0; rank < communicator.size(); ++rank) {
    for (int region = 0; region < 2; ++region) {
      const std::byte* address = transport.peer_address(rank, region);
      const auto bytes = static_cast<std::size_t>(TwoRegions::bytes_of(rank, region));
      const bool reachable = bytes > 0 && (reaches_peers || rank == communicator.rank());
      ASSERT_EQ(address != nullptr, reachable) << "rank " << rank << " region " << region;
      if (reachable) expect_region_content(ConstBytes(address, bytes), rank, region, 5);
    }
  }
  communicator.barrier("all have looked");
  transport.retire();
}

// Regions of many generations do not pile up.
inline void retired_memory_is_free_again(Communicator& communicator, cuda::DeviceTransport& transport) {
  constexpr std::int64_t kBytes = std::int64_t{256} << 20;
  const auto free_now = [] {
    std::size_t available = 0, total = 0;
    ringmark::cuda::check(cudaMemGetInfo(&available, &total), "ask for free GPU memory");
    return static_cast<std::int64_t>(available);
  };
  communicator.barrier("before");
  const std::int64_t before = free_now();
  communicator.barrier("all have looked");
  for (int generation = 0; generation < 8; ++generation) {
    transport.expose(kBytes);
    transport.publish();
    transport.retire();
  }
  communicator.barrier("after");
  EXPECT_GT(free_now(), before - 2 * kBytes);
  communicator.barrier("all have looked again");
}

}  // namespace ringmark::comm::contract
