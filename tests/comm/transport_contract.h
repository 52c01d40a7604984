// What every BlockTransport promises, as functions that each rank calls with its own communicator and transport.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "comm/block_transport.h"
#include "core/error.h"

namespace ringmark::comm::contract {

inline std::byte content(int rank, int region, int epoch, std::int64_t position) {
  const std::uint64_t mixed = static_cast<std::uint64_t>(position) * 0x9E3779B97F4A7C15u +
                              static_cast<std::uint64_t>(rank * 1009 + region * 101 + epoch * 13 + 1);
  return static_cast<std::byte>((mixed ^ (mixed >> 29)) & 0xFFu);
}

inline void fill(Bytes memory, int rank, int region, int epoch) {
  for (std::size_t i = 0; i < memory.size(); ++i)
    memory[i] = content(rank, region, epoch, static_cast<std::int64_t>(i));
}

// Reads and the memory they go to. Destinations start out as 0xFF bytes, which read as NaN in every float format.
class Batch {
 public:
  explicit Batch(std::int64_t capacity) : memory_(static_cast<std::size_t>(capacity), std::byte{0xFF}) {}

  void add(int peer, int region, std::int64_t offset, std::int64_t bytes, std::int64_t gap = 0) {
    used_ += gap;
    reads_.push_back({peer, region, offset,
                      Bytes(memory_).subspan(static_cast<std::size_t>(used_), static_cast<std::size_t>(bytes))});
    used_ += bytes;
  }
  std::span<const RemoteRead> reads() const { return reads_; }

  void expect_content(int epoch) const {
    for (const RemoteRead& read : reads_) {
      for (std::size_t i = 0; i < read.destination.size(); ++i) {
        ASSERT_EQ(read.destination[i],
                  content(read.peer, read.region, epoch, read.offset + static_cast<std::int64_t>(i)))
            << "byte " << i << " of a read from rank " << read.peer << " region " << read.region << " offset "
            << read.offset;
      }
    }
  }
  // The memory between and behind the destinations.
  void expect_gaps_untouched() const {
    std::vector<bool> read_into(memory_.size());
    for (const RemoteRead& read : reads_) {
      const auto first = read.destination.data() - memory_.data();
      for (std::size_t i = 0; i < read.destination.size(); ++i) read_into[static_cast<std::size_t>(first) + i] = true;
    }
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (read_into[i]) continue;
      ASSERT_EQ(memory_[i], std::byte{0xFF}) << "byte " << i;
    }
  }

 private:
  std::vector<std::byte> memory_;
  std::vector<RemoteRead> reads_;
  std::int64_t used_ = 0;
};

inline void read_and_check(BlockTransport& transport, const Batch& batch, int epoch) {
  transport.get(batch.reads())->wait();
  batch.expect_content(epoch);
  batch.expect_gaps_untouched();
}

// Two regions; sizes differ by rank, and region 1 of rank 0 is empty.
class TwoRegions {
 public:
  static std::int64_t bytes_of(int rank, int region) {
    return region == 0 ? 100'000 + 1000 * rank + rank : 30'000 * std::int64_t{rank};
  }
  static void publish(Communicator& communicator, BlockTransport& transport, int epoch) {
    for (int region = 0; region < 2; ++region) {
      const Bytes memory = transport.expose(bytes_of(communicator.rank(), region));
      ASSERT_EQ(static_cast<std::int64_t>(memory.size()), bytes_of(communicator.rank(), region));
      if (!memory.empty()) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 64, 0u);
      }
      fill(memory, communicator.rank(), region, epoch);
    }
    transport.publish();
  }
};

inline void expect_refused(BlockTransport& transport, const RemoteRead& read) {
  try {
    transport.get(std::span(&read, 1));
    ADD_FAILURE() << "accepted: rank " << read.peer << " region " << read.region << " offset " << read.offset;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInternal) << error.what();
  }
}

inline void reads_outside_a_region_are_refused(Communicator& communicator, BlockTransport& transport) {
  std::vector<std::byte> memory(200'000, std::byte{0xFF});
  const Bytes all(memory);
  const std::int64_t size = TwoRegions::bytes_of(0, 0);
  expect_refused(transport, {0, 0, size - 9, all.first(10)});
  expect_refused(transport, {0, 0, size + 1, all.first(0)});
  expect_refused(transport, {0, 0, -1, all.first(10)});
  expect_refused(transport, {0, 0, std::numeric_limits<std::int64_t>::max(), all.first(10)});
  expect_refused(transport, {0, 0, 0, all.first(static_cast<std::size_t>(size) + 1)});
  expect_refused(transport, {0, 1, 0, all.first(1)});
  expect_refused(transport, {0, 2, 0, all.first(1)});
  expect_refused(transport, {0, -1, 0, all.first(1)});
  expect_refused(transport, {communicator.size(), 0, 0, all.first(1)});
  expect_refused(transport, {-1, 0, 0, all.first(1)});
  for (const std::byte byte : memory) ASSERT_EQ(byte, std::byte{0xFF});
}

// Rank 0 wants seven blocks of rank 1, rank 1 wants nothing, the others want themselves.
inline void uneven_wishes_are_served(Communicator& communicator, BlockTransport& transport, int epoch) {
  Batch batch(7 * 4096 + 7 * 64);
  if (communicator.rank() == 0) {
    const int peer = communicator.size() > 1 ? 1 : 0;
    for (int block = 0; block < 7; ++block) batch.add(peer, 0, 9000 * (6 - block), 4096, 64);
  } else if (communicator.rank() >= 2) {
    batch.add(communicator.rank(), 1, 17, 4096);
  }
  read_and_check(transport, batch, epoch);
}

inline void edges_of_regions_are_readable(Communicator& communicator, BlockTransport& transport, int epoch) {
  Batch batch(2'000'000);
  for (int peer = 0; peer < communicator.size(); ++peer) {
    const std::int64_t size = TwoRegions::bytes_of(peer, 0);
    batch.add(peer, 0, 0, 1, 3);
    batch.add(peer, 0, size - 1, 1);
    batch.add(peer, 0, size, 0);
    batch.add(peer, 1, 0, TwoRegions::bytes_of(peer, 1), 1);
    batch.add(peer, 0, 0, size);
  }
  read_and_check(transport, batch, epoch);
}

// Thousands of small reads: scattered, neighbouring on both sides, and neighbouring on one side only.
inline void thousands_of_reads_fit_one_batch(Communicator& communicator, BlockTransport& transport, int epoch) {
  std::mt19937 random(static_cast<unsigned>(communicator.rank()) + 1);
  Batch batch(16'000 * 96);
  for (int i = 0; i < 8000; ++i) {
    const int peer = static_cast<int>(random() % static_cast<unsigned>(communicator.size()));
    const auto offset = static_cast<std::int64_t>(random() % 99'000);
    const auto bytes = static_cast<std::int64_t>(random() % 64);
    batch.add(peer, 0, offset, bytes, i % 2 == 0 ? 0 : 32);
    batch.add(peer, 0, offset + bytes, 32);
  }
  read_and_check(transport, batch, epoch);
}

inline void batches_overlap(Communicator& communicator, BlockTransport& transport, int epoch) {
  const int peer = (communicator.rank() + 1) % communicator.size();
  std::vector<std::unique_ptr<Batch>> batches;
  std::vector<std::unique_ptr<PendingReads>> pending;
  for (int i = 0; i < 6; ++i) {
    batches.push_back(std::make_unique<Batch>(50'000));
    batches.back()->add(peer, 0, 1000 * i, 40'000, i);
    pending.push_back(transport.get(batches.back()->reads()));
  }
  while (!pending.empty()) {  // last first; some are destroyed without wait(), which waits
    if (pending.size() % 2 == 0) pending.back()->wait();
    pending.pop_back();
  }
  for (const auto& batch : batches) batch->expect_content(epoch);
}

inline void honours_the_contract(Communicator& communicator, BlockTransport& transport) {
  for (int epoch = 0; epoch < 3; ++epoch) {
    TwoRegions::publish(communicator, transport, epoch);
    uneven_wishes_are_served(communicator, transport, epoch);
    edges_of_regions_are_readable(communicator, transport, epoch);
    thousands_of_reads_fit_one_batch(communicator, transport, epoch);
    batches_overlap(communicator, transport, epoch);
    reads_outside_a_region_are_refused(communicator, transport);
    transport.retire();
    std::byte target{0xFF};
    expect_refused(transport, {0, 0, 0, Bytes(&target, 1)});
  }
}

// Long enough for several slices of every transport, at odd offsets, in pieces that fit together only at the owner.
inline void long_reads_arrive_whole(Communicator& communicator, BlockTransport& transport) {
  constexpr std::int64_t kBytes = 9'500'001;
  fill(transport.expose(kBytes), communicator.rank(), 0, 0);
  transport.publish();
  const int peer = (communicator.rank() + 1) % communicator.size();
  Batch whole(kBytes);
  whole.add(peer, 0, 0, kBytes);
  read_and_check(transport, whole, 0);
  Batch pieces(kBytes + 100);
  for (std::int64_t at = 0; at < kBytes; at += 1'000'003) {
    pieces.add(peer, 0, at, std::min<std::int64_t>(1'000'003, kBytes - at), 7);
  }
  read_and_check(transport, pieces, 0);
  transport.retire();
}

// Contents change between fences, as blocks that are appended to do: peers read the new bytes after every one of them.
// A region that is exposed later joins the others.
inline void every_fence_shows_what_was_written(Communicator& communicator, BlockTransport& transport) {
  constexpr std::int64_t kBytes = 20'000;
  constexpr int kRounds = 100;
  std::vector<Bytes> regions;
  for (int round = 0; round < kRounds; ++round) {
    if (round % (kRounds / 2) == 0) regions.push_back(transport.expose(kBytes));
    const int exposed = static_cast<int>(regions.size());
    for (int region = 0; region < exposed; ++region) {
      fill(regions[static_cast<std::size_t>(region)], communicator.rank(), region, round);
    }
    transport.publish();
    Batch batch(kBytes * communicator.size() * exposed);
    for (int peer = 0; peer < communicator.size(); ++peer) {
      for (int region = 0; region < exposed; ++region) batch.add(peer, region, 0, kBytes);
    }
    read_and_check(transport, batch, round);
    transport.publish();  // nobody reads the old bytes any more
  }
  transport.retire();
}

// One rank asks for more than there is: every rank says how much, and the transport stays usable.
inline void impossible_regions_are_refused_on_every_rank(Communicator& communicator, BlockTransport& transport) {
  constexpr std::int64_t kTooMuch = std::int64_t{1} << 60;
  const std::int64_t bytes = communicator.rank() == communicator.size() - 1 ? kTooMuch : 0;
  try {
    transport.expose(bytes);
    ADD_FAILURE() << "exposed 2^60 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("1152921504606846976"), std::string::npos) << error.what();
  }
}

}  // namespace ringmark::comm::contract
