// A writer that is killed at any moment leaves the generation before it or its own, whole.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "core/error.h"
#include "tests/kvstore/snapshot_case.h"
#include "tests/kvstore/temporary_folder.h"

namespace ringmark::kvstore {
namespace {

using ringmark::test::SnapshotCase;
using ringmark::test::TemporaryFolder;
using Clock = std::chrono::steady_clock;

SnapshotCase case_of(std::uint32_t seed) {
  SnapshotCase kept;
  kept.problem.tokens = 2000;
  kept.problem.cu_seqlens = {};
  kept.seed = seed;
  return kept;
}

// A process of its own that writes with two ranks.
pid_t start_writer(const SnapshotCase& kept, const std::string& folder) {
  const pid_t writer = ::fork();
  if (writer != 0) return writer;
  try {
    kept.write(2, folder);
  } catch (const std::exception&) {
    ::_exit(1);
  }
  ::_exit(0);
}

struct Tally {
  int killed = 0;
  int took_new = 0;
  int took_old = 0;
};

// Kills `kills` writers one after the other, in one folder, so that each also meets what the one before left.
Tally kill_writers(int kills) {
  const TemporaryFolder folder;
  const std::string path = folder.file("kept");
  SnapshotCase last = case_of(0);
  const auto begin = Clock::now();
  last.write(2, path);
  const std::chrono::duration<double> undisturbed = Clock::now() - begin;
  std::mt19937 random(11);
  std::uniform_real_distribution<double> share(0.0, 1.5);
  Tally tally;
  for (int i = 1; i <= kills; ++i) {
    const SnapshotCase next = case_of(static_cast<std::uint32_t>(i));
    const pid_t writer = start_writer(next, path);
    std::this_thread::sleep_for(undisturbed * share(random));
    ::kill(writer, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(writer, &status, 0), writer);
    tally.killed += WIFSIGNALED(status) ? 1 : 0;
    const Snapshot snapshot = Snapshot::open(path);
    snapshot.verify();
    if (next.equals(snapshot)) {
      last = next;
      ++tally.took_new;
    } else {
      EXPECT_TRUE(last.equals(snapshot)) << "kill " << i;
      EXPECT_TRUE(WIFSIGNALED(status)) << "a writer that ended by itself left nothing";
      ++tally.took_old;
    }
  }
  // Whatever the killed left, the next writer clears it.
  last = case_of(12345);
  last.write(3, path);
  std::size_t generations = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) generations += entry.is_directory() ? 1 : 0;
  EXPECT_EQ(generations, 2u);
  EXPECT_TRUE(last.equals(Snapshot::open(path)));
  return tally;
}

void expect_all_whole(int kills) {
  const Tally tally = kill_writers(kills);
  EXPECT_EQ(tally.took_new + tally.took_old, kills);
  EXPECT_GT(tally.killed, 0);  // else every delay missed the writing
  EXPECT_GT(tally.took_old, 0);
  std::printf("%d writers, %d killed while writing: %d left the generation before, %d their own\n", kills, tally.killed,
              tally.took_old, tally.took_new);
}

TEST(SnapshotKill, fifty_kills_lose_nothing) { expect_all_whole(50); }
TEST(SnapshotKillFull, five_hundred_kills_lose_nothing) { expect_all_whole(500); }

}  // namespace
}  // namespace ringmark::kvstore
