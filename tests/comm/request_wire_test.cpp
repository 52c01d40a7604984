#include "comm/request_wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "comm/mpi_session.h"
#include "comm/region_table.h"
#include "core/error.h"

namespace ringmark::comm {
namespace {

TEST(LiesInside, does_not_wrap) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(lies_inside(0, 10, 10));
  EXPECT_TRUE(lies_inside(10, 0, 10));
  EXPECT_FALSE(lies_inside(11, 0, 10));
  EXPECT_FALSE(lies_inside(1, 10, 10));
  EXPECT_FALSE(lies_inside(-1, 1, 10));
  EXPECT_FALSE(lies_inside(0, -1, 10));
  EXPECT_FALSE(lies_inside(kMost, kMost, 10));
  EXPECT_FALSE(lies_inside(5, kMost, kMost));
}

TEST(MergeReads, joins_only_what_touches_on_both_sides) {
  std::vector<std::byte> memory(100);
  const Bytes all(memory);
  const std::vector<RemoteRead> reads{
      {1, 0, 0, all.subspan(0, 10)},                                   // these two touch on both sides
      {1, 0, 10, all.subspan(10, 5)}, {1, 0, 20, all.subspan(15, 5)},  // touches at the destination only
      {1, 0, 25, all.subspan(30, 5)},                                  // touches at the source only
      {1, 1, 30, all.subspan(35, 5)},                                  // another region
      {0, 1, 35, all.subspan(40, 5)},                                  // another peer
      {1, 1, 35, all.subspan(45, 0)},                                  // empty
      {1, 1, 35, all.subspan(40, 5)},
  };
  const auto runs = merge_reads(reads, 3);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].size(), 1u);
  EXPECT_TRUE(runs[2].empty());
  ASSERT_EQ(runs[1].size(), 4u);
  EXPECT_EQ(runs[1][0].destination.size(), 15u);
  EXPECT_EQ(runs[1][1].offset, 20);
  EXPECT_EQ(runs[1][2].offset, 25);
  EXPECT_EQ(runs[1][3].region, 1);
  EXPECT_EQ(runs[1][3].destination.size(), 10u);
}

// open-mpi/ompi#5383 and its kind: both sides must cut alike, whatever they can merge on their own side.
TEST(CutIntoSlices, depends_on_lengths_alone) {
  std::vector<std::byte> memory(10'000);
  const Bytes all(memory);
  const std::vector<Bytes> scattered{all.subspan(0, 700), all.subspan(1000, 2500), all.subspan(800, 1),
                                     all.subspan(4000, 999)};
  const std::vector<Bytes> adjacent{all.subspan(0, 700), all.subspan(700, 2500), all.subspan(3200, 1),
                                    all.subspan(3201, 999)};
  const auto one = cut_into_slices<Bytes>(scattered, {.longest = 1000, .alone = 5000});
  const auto other = cut_into_slices<Bytes>(adjacent, {.longest = 1000, .alone = 5000});
  ASSERT_EQ(one.size(), 5u);
  ASSERT_EQ(other.size(), 5u);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].bytes, i < 4 ? 1000u : 200u);
    EXPECT_EQ(other[i].bytes, one[i].bytes);
    EXPECT_EQ(other[i].pieces.size(), 1u);
  }
  EXPECT_EQ(one[0].pieces.size(), 2u);
  EXPECT_TRUE(cut_into_slices<Bytes>({}, kReplyRule).empty());
}

TEST(CutIntoSlices, leaves_long_runs_alone) {
  std::vector<std::byte> memory(10'000);
  const Bytes all(memory);
  const std::vector<Bytes> runs{all.subspan(0, 10), all.subspan(10, 500), all.subspan(600, 10), all.subspan(700, 20),
                                all.subspan(1000, 1200)};
  const auto slices = cut_into_slices<Bytes>(runs, {.longest = 1000, .alone = 500});
  ASSERT_EQ(slices.size(), 5u);
  const std::vector<std::size_t> bytes{10, 500, 30, 1000, 200};
  for (std::size_t i = 0; i < slices.size(); ++i) EXPECT_EQ(slices[i].bytes, bytes[i]);
  EXPECT_EQ(slices[2].pieces.size(), 2u);
}

class Request : public testing::Test {
 protected:
  // One run of a request for one slice, as it stands in the message.
  std::vector<std::byte> message_of(RequestedRun run, std::uint32_t runs = 1, std::uint32_t slices = 1) {
    const RequestHead head{.sequence = 7, .runs = runs, .slices = slices};
    std::vector<std::byte> message(sizeof(head) + sizeof(run));
    std::memcpy(message.data(), &head, sizeof(head));
    std::memcpy(message.data() + sizeof(head), &run, sizeof(run));
    return message;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(1000);
  std::vector<ConstBytes> regions_{ConstBytes(memory_), ConstBytes(memory_).first(10)};
};

TEST_F(Request, survives_the_wire) {
  std::vector<std::byte> destination(300);
  const std::vector<ReadRun> runs{{0, 100, Bytes(destination).first(200)}, {1, 2, Bytes(destination).last(8)}};
  const auto message = encode_request(41, runs, 1);
  const auto head = decode_head(message);
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(head->sequence, 41u);
  EXPECT_EQ(head->slices, 1u);
  const auto slices = decode_request(message, regions_);
  ASSERT_TRUE(slices.has_value());
  ASSERT_EQ(slices->size(), 1u);
  const auto& pieces = slices->front().pieces;
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].data(), memory_.data() + 100);
  EXPECT_EQ(pieces[0].size(), 200u);
  EXPECT_EQ(pieces[1].data(), memory_.data() + 2);
}

TEST_F(Request, is_refused_by_the_server_when_it_leaves_its_region) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(decode_request(message_of({0, 1000, 0}), regions_).has_value());
  EXPECT_TRUE(decode_request(message_of({1000, 0, 0}, 1, 0), regions_).has_value());
  EXPECT_FALSE(decode_request(message_of({0, 1001, 0}), regions_).has_value());
  EXPECT_FALSE(decode_request(message_of({-1, 1, 0}), regions_).has_value());
  EXPECT_FALSE(decode_request(message_of({kMost, kMost, 0}), regions_).has_value());
  EXPECT_FALSE(decode_request(message_of({0, -5, 0}), regions_).has_value());
  EXPECT_FALSE(decode_request(message_of({5, 6, 1}), regions_).has_value());
  EXPECT_FALSE(decode_request(message_of({0, 1, 2}), regions_).has_value());
  EXPECT_FALSE(decode_request(message_of({0, 1, -1}), regions_).has_value());
}

TEST_F(Request, is_refused_by_the_server_when_it_contradicts_its_head) {
  EXPECT_FALSE(decode_request(message_of({0, 1, 0}, 2), regions_).has_value());
  EXPECT_FALSE(decode_request(message_of({0, 1, 0}, 0xFFFFFFFFu), regions_).has_value());
  EXPECT_FALSE(decode_request(message_of({0, 1, 0}, 1, 2), regions_).has_value());
  EXPECT_FALSE(decode_request(message_of({0, 1, 0}, 1, 0), regions_).has_value());
  EXPECT_FALSE(decode_head(std::vector<std::byte>(3)).has_value());
}

// NVIDIA/pyxis#107 and its kind: N tasks that each believe to be alone.
TEST(SplitLaunch, is_refused_with_both_numbers) {
  try {
    refuse_split_launch(1, "4", false);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    const std::string text = error.what();
    EXPECT_NE(text.find("SLURM_NTASKS is 4"), std::string::npos) << text;
    EXPECT_NE(text.find("has 1 rank"), std::string::npos) << text;
  }
}

TEST(SplitLaunch, is_not_seen_where_there_is_none) {
  EXPECT_NO_THROW(refuse_split_launch(4, "4", false));
  EXPECT_NO_THROW(refuse_split_launch(1, "4", true));
  EXPECT_NO_THROW(refuse_split_launch(1, "1", false));
  EXPECT_NO_THROW(refuse_split_launch(1, nullptr, false));
  EXPECT_NO_THROW(refuse_split_launch(1, "", false));
}

}  // namespace
}  // namespace ringmark::comm
