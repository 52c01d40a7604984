#include "comm/cuda/nccl_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/comm/transport_contract.h"

namespace ringmark::comm::cuda {
namespace {

using Memory = std::vector<std::byte>;

// A read of rank `reader`: bytes of the owner's only region.
struct Wish {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

// All ranks of a job in host memory, with a wire that records what is posted on it.
class Job {
 public:
  Job(int ranks, std::int64_t region_bytes, SliceRule rule) : rule_(rule), ranks_(static_cast<std::size_t>(ranks)) {
    for (int r = 0; r < ranks; ++r) {
      Memory region(static_cast<std::size_t>(region_bytes));
      contract::fill(region, r, 0, 0);
      regions_.push_back(std::move(region));
      const std::size_t staging = static_cast<std::size_t>(ranks - 1) * rule.longest;
      outgoing_.emplace_back(staging, std::byte{0xEE});
      incoming_.emplace_back(staging, std::byte{0xEE});
    }
    wishes_.resize(ranks_, std::vector<std::vector<Wish>>(ranks_));
  }

  void wish(std::size_t reader, std::size_t owner, Wish wish) { wishes_[reader][owner].push_back(wish); }

  void run() {
    plan();
    std::size_t rounds = 0;
    for (const auto& plan : plans_) rounds = std::max(rounds, plan.size());
    for (std::size_t i = 0; i < rounds; ++i) run_round(i);
    check_arrivals();
  }

  std::size_t rounds_of(std::size_t rank) const { return plans_[rank].size(); }
  const Round& round(std::size_t rank, std::size_t index) const { return plans_[rank][index]; }

 private:
  void plan() {
    for (std::size_t reader = 0; reader < ranks_; ++reader) {
      arrived_.emplace_back();
      for (std::size_t owner = 0; owner < ranks_; ++owner) {
        std::vector<Memory> pieces;
        for (const Wish& wish : wishes_[reader][owner]) {
          pieces.emplace_back(static_cast<std::size_t>(wish.bytes), std::byte{0xFF});
        }
        arrived_[reader].push_back(std::move(pieces));
      }
    }
    for (std::size_t rank = 0; rank < ranks_; ++rank) plans_.push_back(plan_of(rank));
  }

  std::vector<Round> plan_of(std::size_t rank) {
    std::vector<std::vector<ConstBytes>> wanted_by(ranks_);
    std::vector<std::vector<Bytes>> wanted_from(ranks_);
    for (std::size_t peer = 0; peer < ranks_; ++peer) {
      for (const Wish& wish : wishes_[peer][rank]) {
        wanted_by[peer].push_back(
            ConstBytes(regions_[rank])
                .subspan(static_cast<std::size_t>(wish.offset), static_cast<std::size_t>(wish.bytes)));
      }
      for (Memory& piece : arrived_[rank][peer]) wanted_from[peer].push_back(Bytes(piece));
    }
    return plan_rounds(static_cast<int>(rank), wanted_by, wanted_from, {outgoing_[rank], incoming_[rank], rule_});
  }

  void run_round(std::size_t index) {
    for (std::size_t r = 0; r < ranks_; ++r) {
      if (index < plans_[r].size()) make_copies(plans_[r][index].pack);
    }
    for (std::size_t sender = 0; sender < ranks_; ++sender) {
      for (std::size_t receiver = 0; receiver < ranks_; ++receiver) deliver(index, sender, receiver);
    }
    for (std::size_t r = 0; r < ranks_; ++r) {
      if (index < plans_[r].size()) make_copies(plans_[r][index].unpack);
    }
  }

  // What one side of a pair has posted in this round, and what the other one expects, in order.
  void deliver(std::size_t index, std::size_t sender, std::size_t receiver) {
    std::vector<ConstBytes> sent;
    std::vector<Bytes> expected;
    if (index < plans_[sender].size()) {
      for (const Outgoing& message : plans_[sender][index].sends) {
        if (message.peer == static_cast<int>(receiver)) sent.push_back(message.memory);
      }
    }
    if (index < plans_[receiver].size()) {
      for (const Incoming& message : plans_[receiver][index].receives) {
        if (message.peer == static_cast<int>(sender)) expected.push_back(message.memory);
      }
    }
    ASSERT_EQ(sent.size(), expected.size()) << "round " << index << ", rank " << sender << " to rank " << receiver;
    ASSERT_LE(sent.size(), 1u);
    ASSERT_TRUE(sent.empty() || sender != receiver) << "rank " << sender << " sends to itself";
    for (std::size_t i = 0; i < sent.size(); ++i) {
      ASSERT_EQ(sent[i].size(), expected[i].size())
          << "round " << index << ", rank " << sender << " to rank " << receiver;
      ASSERT_GT(sent[i].size(), 0u);
      ASSERT_LE(sent[i].size(), rule_.longest);
      std::memcpy(expected[i].data(), sent[i].data(), sent[i].size());
    }
  }

  static void make_copies(std::span<const Copy> copies) {
    for (const Copy& copy : copies) {
      ASSERT_GT(copy.bytes, 0);
      std::memcpy(copy.destination, copy.source, static_cast<std::size_t>(copy.bytes));
    }
  }

  void check_arrivals() const {
    for (std::size_t reader = 0; reader < ranks_; ++reader) {
      for (std::size_t owner = 0; owner < ranks_; ++owner) {
        if (owner == reader) continue;
        for (std::size_t i = 0; i < arrived_[reader][owner].size(); ++i) {
          const Wish& wish = wishes_[reader][owner][i];
          const auto begin = regions_[owner].begin() + wish.offset;
          ASSERT_TRUE(std::equal(begin, begin + wish.bytes, arrived_[reader][owner][i].begin()))
              << "read " << i << " of rank " << reader << " from rank " << owner;
        }
      }
    }
  }

  SliceRule rule_;
  std::size_t ranks_;
  std::vector<Memory> regions_;
  std::vector<Memory> outgoing_;
  std::vector<Memory> incoming_;
  std::vector<std::vector<std::vector<Wish>>> wishes_;     // by reader, by owner
  std::vector<std::vector<std::vector<Memory>>> arrived_;  // the same
  std::vector<std::vector<Round>> plans_;                  // by rank
};

constexpr SliceRule kSmallRule{.longest = 1000, .alone = 300};

TEST(NcclPlan, matches_every_send_with_one_receive) {
  std::mt19937 random(7);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(limit));
  };
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      Job job(ranks, 20'000, kSmallRule);
      for (std::size_t reader = 0; reader < static_cast<std::size_t>(ranks); ++reader) {
        for (std::size_t owner = 0; owner < static_cast<std::size_t>(ranks); ++owner) {
          if (owner == reader || below(3) == 0) continue;
          for (std::int64_t i = below(40); i > 0; --i) {
            const std::int64_t bytes = 1 + (below(10) == 0 ? below(5000) : below(200));
            job.wish(reader, owner, {below(20'000 - bytes), bytes});
          }
        }
      }
      job.run();
      if (HasFatalFailure()) return;
    }
  }
}

TEST(NcclPlan, is_empty_when_nobody_reads) {
  Job job(4, 100, kSmallRule);
  job.run();
  for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(job.rounds_of(r), 0u);
}

// Rank 0 wants seven blocks of rank 1, rank 1 wants nothing.
TEST(NcclPlan, sends_small_reads_of_a_pair_as_one_message) {
  Job job(3, 1000, kSmallRule);
  for (std::int64_t block = 0; block < 7; ++block) job.wish(0, 1, {100 * (6 - block), 64});
  job.run();
  ASSERT_EQ(job.rounds_of(0), 1u);
  ASSERT_EQ(job.rounds_of(1), 1u);
  EXPECT_EQ(job.rounds_of(2), 0u);
  EXPECT_EQ(job.round(1, 0).pack.size(), 7u);
  ASSERT_EQ(job.round(1, 0).sends.size(), 1u);
  EXPECT_EQ(job.round(1, 0).sends[0].memory.size(), 7u * 64);
  EXPECT_TRUE(job.round(1, 0).receives.empty());
  EXPECT_EQ(job.round(0, 0).unpack.size(), 7u);
  EXPECT_TRUE(job.round(0, 0).sends.empty());
}

TEST(NcclPlan, leaves_long_reads_in_place) {
  Job job(2, 5000, kSmallRule);
  job.wish(0, 1, {17, 2500});
  job.run();
  ASSERT_EQ(job.rounds_of(0), 3u);  // 1000 + 1000 + 500
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(job.round(1, i).pack.empty());
    EXPECT_TRUE(job.round(0, i).unpack.empty());
  }
}

// Neighbours in the owner's memory that go to different places: one message there, unpacked here.
TEST(NcclPlan, packs_on_one_side_only_where_the_other_is_whole) {
  Job job(2, 1000, kSmallRule);
  job.wish(0, 1, {100, 50});
  job.wish(0, 1, {150, 50});
  job.run();
  ASSERT_EQ(job.rounds_of(1), 1u);
  EXPECT_TRUE(job.round(1, 0).pack.empty());
  EXPECT_EQ(job.round(0, 0).unpack.size(), 2u);
}

}  // namespace
}  // namespace ringmark::comm::cuda
