// What every Communicator promises, as functions that each rank calls with its own communicator.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace ringmark::comm::contract {

using Message = std::vector<std::byte>;

// Content that tells sender, receiver and position apart.
inline Message message_between(int from, int to, std::size_t bytes) {
  Message message(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    message[i] =
        static_cast<std::byte>(i * 131 + static_cast<std::size_t>(from) * 17 + static_cast<std::size_t>(to) * 59);
  }
  return message;
}

inline std::vector<Bytes> views_of(std::vector<Message>& messages) {
  return std::vector<Bytes>(messages.begin(), messages.end());
}

// Rank r sends r x bytes_per_rank bytes; rank 0 sends nothing.
inline void all_gather_delivers_unequal_sizes(Communicator& communicator, std::size_t bytes_per_rank) {
  const auto bytes_of = [&](int rank) { return static_cast<std::size_t>(rank) * bytes_per_rank; };
  std::vector<Message> all;
  for (int r = 0; r < communicator.size(); ++r) all.emplace_back(bytes_of(r), std::byte{0xFF});
  const Message mine = message_between(communicator.rank(), 0, bytes_of(communicator.rank()));
  communicator.all_gather("unequal sizes", mine, views_of(all));
  for (int r = 0; r < communicator.size(); ++r) {
    EXPECT_EQ(all[static_cast<std::size_t>(r)], message_between(r, 0, bytes_of(r))) << "from rank " << r;
  }
}

// bytes_between(from, to) is known to both sides.
template <class BytesBetween>
void all_to_all_delivers(Communicator& communicator, BytesBetween bytes_between) {
  std::vector<Message> out;
  std::vector<Message> in;
  for (int peer = 0; peer < communicator.size(); ++peer) {
    out.push_back(message_between(communicator.rank(), peer, bytes_between(communicator.rank(), peer)));
    in.emplace_back(bytes_between(peer, communicator.rank()), std::byte{0xFF});
  }
  communicator.all_to_all("matrix", std::vector<ConstBytes>(out.begin(), out.end()), views_of(in));
  for (int peer = 0; peer < communicator.size(); ++peer) {
    EXPECT_EQ(in[static_cast<std::size_t>(peer)],
              message_between(peer, communicator.rank(), bytes_between(peer, communicator.rank())))
        << "from rank " << peer;
  }
}

inline void all_to_all_takes_any_matrix(Communicator& communicator) {
  all_to_all_delivers(communicator, [](int, int) { return std::size_t{0}; });
  all_to_all_delivers(communicator, [](int, int) { return std::size_t{16}; });
  // Nobody sends to rank 0, and rank 1 sends nothing.
  all_to_all_delivers(communicator, [](int from, int to) {
    return to == 0 || from == 1 ? std::size_t{0} : static_cast<std::size_t>(from * 1000 + to * 7 + 1);
  });
  // Only to oneself.
  all_to_all_delivers(communicator, [](int from, int to) { return from == to ? std::size_t{5000} : std::size_t{0}; });
  all_to_all_delivers(communicator, [](int from, int to) {
    return std::size_t{100'000} * static_cast<std::size_t>(from) + static_cast<std::size_t>(to);
  });
}

// Two exchanges are under way at once, other collectives in between, and every rank works for another while.
inline void started_exchanges_deliver(Communicator& communicator) {
  constexpr std::size_t kBytes = 500'000;  // too long to be buffered on its way
  const int ranks = communicator.size();
  std::vector<Message> out, first(static_cast<std::size_t>(ranks)), second(static_cast<std::size_t>(ranks));
  for (int peer = 0; peer < ranks; ++peer) {
    out.push_back(message_between(communicator.rank(), peer, kBytes));
    first[static_cast<std::size_t>(peer)].resize(kBytes);
    second[static_cast<std::size_t>(peer)].resize(kBytes);
  }
  const std::vector<ConstBytes> send(out.begin(), out.end());
  const auto one = communicator.start_all_to_all("first", send, views_of(first));
  const auto other = communicator.start_all_to_all("second", send, views_of(second));
  EXPECT_EQ(communicator.gather_sizes("meanwhile", communicator.rank()).back(), ranks - 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(5 * communicator.rank()));
  one->wait({});
  other->wait({});
  for (int peer = 0; peer < ranks; ++peer) {
    EXPECT_EQ(first[static_cast<std::size_t>(peer)], message_between(peer, communicator.rank(), kBytes));
    EXPECT_EQ(second[static_cast<std::size_t>(peer)], message_between(peer, communicator.rank(), kBytes));
  }
}

inline void reductions_are_exact(Communicator& communicator) {
  const std::int64_t ranks = communicator.size();
  const std::int64_t rank = communicator.rank();
  std::vector<std::int64_t> sums{1, rank, (std::int64_t{1} << 53) + rank};
  communicator.all_reduce_sum("sum", sums);
  const std::int64_t triangle = ranks * (ranks - 1) / 2;
  EXPECT_EQ(sums, (std::vector<std::int64_t>{ranks, triangle, ranks * (std::int64_t{1} << 53) + triangle}));

  std::vector<std::int64_t> maxima{rank, -rank, std::numeric_limits<std::int64_t>::min()};
  communicator.all_reduce_max("max", maxima);
  EXPECT_EQ(maxima, (std::vector<std::int64_t>{ranks - 1, 0, std::numeric_limits<std::int64_t>::min()}));

  std::vector<double> empty;
  communicator.all_reduce_max("nothing", empty);
}

inline void reductions_give_the_same_bits_on_every_rank(Communicator& communicator) {
  const int last = communicator.size() - 1;
  std::vector<double> values{communicator.rank() % 2 == 0 ? 0.0 : -0.0, static_cast<double>(communicator.rank()),
                             communicator.rank() == last ? std::numeric_limits<double>::quiet_NaN() : 1.0};
  communicator.all_reduce_max("max of doubles", values);
  EXPECT_EQ(values[1], last);
  EXPECT_TRUE(std::isnan(values[2]));
  for (const double value : values) {
    const auto bits = std::bit_cast<std::int64_t>(value);
    for (const std::int64_t other : communicator.gather_sizes("bits", bits)) EXPECT_EQ(other, bits);
  }
}

inline void gather_sizes_keeps_the_order_of_ranks(Communicator& communicator) {
  const std::int64_t big = std::int64_t{1} << 40;
  const auto sizes = communicator.gather_sizes("sizes", big - communicator.rank());
  ASSERT_EQ(sizes.size(), static_cast<std::size_t>(communicator.size()));
  for (int r = 0; r < communicator.size(); ++r) EXPECT_EQ(sizes[static_cast<std::size_t>(r)], big - r);
}

// A rank may leave a collective and enter the next one while another has not left yet.
inline void collectives_follow_each_other_without_mixing(Communicator& communicator) {
  for (int round = 0; round < 50; ++round) {
    if (round % 10 == communicator.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (const std::int64_t value : communicator.gather_sizes("round", round)) ASSERT_EQ(value, round);
    communicator.barrier("between rounds");
  }
}

inline void honours_the_contract(Communicator& communicator) {
  EXPECT_GE(communicator.rank(), 0);
  EXPECT_LT(communicator.rank(), communicator.size());
  EXPECT_GE(communicator.host_ranks(), 1);
  EXPECT_LE(communicator.host_ranks(), communicator.size());
  all_gather_delivers_unequal_sizes(communicator, 0);
  all_gather_delivers_unequal_sizes(communicator, 1);
  all_gather_delivers_unequal_sizes(communicator, 12'345);
  all_to_all_takes_any_matrix(communicator);
  started_exchanges_deliver(communicator);
  reductions_are_exact(communicator);
  reductions_give_the_same_bits_on_every_rank(communicator);
  gather_sizes_keeps_the_order_of_ranks(communicator);
  collectives_follow_each_other_without_mixing(communicator);
}

// The last rank stays away for longer than the timeout; every other rank gets out in time and names it.
template <class Collective>
void missing_rank_is_named(Communicator& communicator, Collective collective) {
  const int missing = communicator.size() - 1;
  if (communicator.size() < 2) return;
  if (communicator.rank() == missing) {
    std::this_thread::sleep_for(2 * communicator.timeout() + std::chrono::milliseconds(200));
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  try {
    collective(communicator);
    ADD_FAILURE() << "rank " << communicator.rank() << " went on without rank " << missing;
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), ExitCode::kPeer);
    EXPECT_NE(text.find("rank " + std::to_string(communicator.rank()) + ": stage 'lonely': waited"), std::string::npos)
        << text;
    EXPECT_NE(text.find("for rank " + std::to_string(missing)), std::string::npos) << text;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, communicator.timeout() + std::chrono::seconds(1));
}

// Peers that work longer than the timeout are awaited for as long as they are allowed.
inline void late_rank_is_awaited(Communicator& communicator) {
  if (communicator.rank() == communicator.size() - 1) std::this_thread::sleep_for(2 * communicator.timeout());
  communicator.barrier("uneven work", 10 * communicator.timeout());

  // The timeout of what was started begins with the wait: neither own work before it nor that of a peer counts.
  const bool late = communicator.rank() == communicator.size() - 1;
  const std::vector<Message> out(static_cast<std::size_t>(communicator.size()), Message(8));
  std::vector<Message> in = out;
  if (late) std::this_thread::sleep_for(2 * communicator.timeout());
  const std::vector<ConstBytes> send(out.begin(), out.end());
  const auto started = communicator.start_all_to_all("work of all", send, views_of(in));
  if (!late) std::this_thread::sleep_for(2 * communicator.timeout());
  started->wait(10 * communicator.timeout());
}

}  // namespace ringmark::comm::contract
