#include "comm/spill_arena.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>

#include "comm/arena.h"
#include "comm/loopback_transport.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "tests/comm/transport_contract.h"
#include "tests/kvstore/temporary_folder.h"

namespace ringmark::comm {
namespace {

using test::TemporaryFolder;

constexpr std::int64_t kMebibyte = 1 << 20;

std::byte pattern(std::size_t i) { return static_cast<std::byte>(i * 31 + i / 4096); }

void fill(Bytes bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(i);
}

std::int64_t count_wrong(ConstBytes bytes) {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) wrong += bytes[i] != pattern(i);
  return wrong;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// Sums over the parts of [begin, end) that /proc/self/smaps knows.
struct Resident {
  std::int64_t bytes = 0;
  std::int64_t anonymous = 0;
  bool in_deleted_file = true;  // all of it
};

Resident resident(const std::byte* begin, const std::byte* end) {
  std::ifstream smaps("/proc/self/smaps");
  Resident found;
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long low = 0, high = 0;
    long kibibytes = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &low, &high) == 2) {
      inside = low < reinterpret_cast<std::uintptr_t>(end) && high > reinterpret_cast<std::uintptr_t>(begin);
      if (inside && !line.ends_with("(deleted)")) found.in_deleted_file = false;
    } else if (inside && std::sscanf(line.c_str(), "Rss: %ld", &kibibytes) == 1) {
      found.bytes += kibibytes * 1024;
    } else if (inside && std::sscanf(line.c_str(), "Anonymous: %ld", &kibibytes) == 1) {
      found.anonymous += kibibytes * 1024;
    }
  }
  return found;
}

TEST(SpillArena, is_one_piece_of_memory) {
  const TemporaryFolder folder;
  for (const std::int64_t memory : {std::int64_t{0}, std::int64_t{5000}, kMebibyte, 3 * kMebibyte, 5 * kMebibyte}) {
    const auto arena = Arena::allocate(3 * kMebibyte + 77, SpillPolicy{memory, folder.file("")});
    const Bytes bytes = arena->bytes();
    ASSERT_EQ(std::ssize(bytes), 3 * kMebibyte + 77);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % kArenaAlignment, 0u);
    fill(bytes);
    EXPECT_EQ(count_wrong(bytes), 0);
    EXPECT_TRUE(folder.names().empty());
  }
  EXPECT_EQ(Arena::allocate(0, SpillPolicy{0, folder.file("")})->bytes().size(), 0u);
}

TEST(SpillArena, keeps_in_memory_what_the_policy_says_and_no_more) {
  const TemporaryFolder folder;
  const auto arena = Arena::allocate(8 * kMebibyte, SpillPolicy{2 * kMebibyte, folder.file("")});
  const Bytes bytes = arena->bytes();
  fill(bytes);
  const std::byte* const border = bytes.data() + 2 * kMebibyte;
  const Resident kept = resident(bytes.data(), border);
  EXPECT_GE(kept.anonymous, 2 * kMebibyte);
  EXPECT_FALSE(kept.in_deleted_file);
  const Resident spilled = resident(border, bytes.data() + bytes.size());
  EXPECT_EQ(spilled.anonymous, 0);
  EXPECT_GT(spilled.bytes, 0);
  EXPECT_TRUE(spilled.in_deleted_file);
}

TEST(SpillArena, says_what_it_lacks) {
  const TemporaryFolder folder;
  const std::string missing = folder.file("missing");
  const std::string nowhere = error_of([&] { Arena::allocate(kMebibyte, SpillPolicy{0, missing}); });
  EXPECT_NE(nowhere.find(missing), std::string::npos) << nowhere;
  EXPECT_NE(nowhere.find("1048576"), std::string::npos) << nowhere;
  const std::string petabyte = error_of([&] {
    Arena::allocate(std::int64_t{1} << 46, SpillPolicy{4096, folder.file("")});
  });
  EXPECT_NE(petabyte.find(std::to_string((std::int64_t{1} << 46) - 4096)), std::string::npos) << petabyte;
  EXPECT_NE(petabyte.find("bytes are free"), std::string::npos) << petabyte;
  EXPECT_NE(error_of([&] {
              Arena::allocate(std::int64_t{1} << 60, SpillPolicy{std::int64_t{1} << 60, "/"});
            }).find("1152921504606846976"),
            std::string::npos);
  EXPECT_TRUE(folder.names().empty());
}

// A limit on the size of files stands for a disk that fills between the question and the reservation.
TEST(SpillArena, reserves_before_it_maps) {
  const TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{static_cast<rlim_t>(kMebibyte), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of([&] { Arena::allocate(2 * kMebibyte, SpillPolicy{0, folder.file("")}); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(error.find("2097152"), std::string::npos) << error;
  EXPECT_NE(error.find("too large"), std::string::npos) << error;
  EXPECT_TRUE(folder.names().empty());
}

TEST(SpillArenaDeathTest, leaves_nothing_behind_when_killed) {
  const TemporaryFolder folder;
  const auto work_until_killed = [&] {
    const auto arena = Arena::allocate(kMebibyte, SpillPolicy{0, folder.file("")});
    fill(arena->bytes());
    std::raise(SIGKILL);
  };
  EXPECT_EXIT(work_until_killed(), testing::KilledBySignal(SIGKILL), "");
  EXPECT_TRUE(folder.names().empty());
}

TEST(SpillArena, serves_the_transport_contract) {
  const TemporaryFolder folder;
  run_thread_ranks(3, [&](Communicator& communicator) {
    LoopbackTransport transport(communicator, SpillPolicy{4096, folder.file("")});
    contract::honours_the_contract(communicator, transport);
    contract::impossible_regions_are_refused_on_every_rank(communicator, transport);
    contract::honours_the_contract(communicator, transport);
  });
}

TEST(SpillArena, regions_share_the_memory_of_their_transport) {
  const TemporaryFolder folder;
  run_thread_ranks(1, [&](Communicator& communicator) {
    LoopbackTransport transport(communicator, SpillPolicy{2 * kMebibyte, folder.file("")});
    for (int round = 0; round < 2; ++round) {
      const Bytes first = transport.expose(kMebibyte);
      const Bytes second = transport.expose(2 * kMebibyte);
      fill(first);
      fill(second);
      EXPECT_FALSE(resident(first.data(), first.data() + first.size()).in_deleted_file);
      const std::byte* const border = second.data() + kMebibyte;
      EXPECT_EQ(resident(border, second.data() + second.size()).anonymous, 0);
      transport.publish();
      transport.retire();
    }
  });
}

}  // namespace
}  // namespace ringmark::comm
