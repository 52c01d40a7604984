// Snapshots: any rank count writes, any other reads the same bits; damage is named, never read; the newest generation
// that is whole counts.
#include "kvstore/snapshot.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <random>
#include <set>

#include "core/error.h"
#include "tests/kvstore/snapshot_case.h"
#include "tests/kvstore/temporary_folder.h"

namespace ringmark::kvstore {
namespace {

namespace fs = std::filesystem;
using ringmark::test::SnapshotCase;
using ringmark::test::TemporaryFolder;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    names.insert(fs::relative(entry.path(), folder).string());
  }
  return names;
}

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return {ExitCode::kOk, ""};
}

void flip_bit(const fs::path& path, std::size_t bit) {
  std::string bytes = TemporaryFolder::read(path.string());
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(Snapshot, comes_back_bit_for_bit_at_any_rank_count) {
  for (const int writers : {1, 2, 3, 4}) {
    const TemporaryFolder folder;
    const SnapshotCase kept;
    EXPECT_EQ(kept.write(writers, folder.file("kept")), 1u);
    EXPECT_TRUE(kept.equals(Snapshot::open(folder.file("kept"))));
    for (const int readers : {1, 3, 5}) {
      comm::run_thread_ranks(readers, [&](comm::Communicator& ranks) {
        EXPECT_TRUE(kept.equals(Snapshot::open(ranks, folder.file("kept"))));
      });
    }
    EXPECT_EQ(names_in(folder.file("kept/generation-000001")).size(), static_cast<std::size_t>(writers) + 1);
  }
}

TEST(Snapshot, keeps_every_format_and_layers_that_do_not_select) {
  const TemporaryFolder folder;
  std::uint64_t generation = 0;
  for (const BlockFormat format : {BlockFormat::kAsInput, BlockFormat::kFp8, BlockFormat::kInt8, BlockFormat::kInt4}) {
    for (const Scorer scorer : {Scorer::kHils, Scorer::kOracle, Scorer::kNone}) {
      SnapshotCase kept;
      kept.format = format;
      kept.policy.scorer = scorer;
      EXPECT_EQ(kept.write(3, folder.file("kept")), ++generation);
      const Snapshot snapshot = Snapshot::open(folder.file("kept"));
      EXPECT_TRUE(kept.equals(snapshot)) << name_of(format) << " " << name_of(scorer);
      const VerifiedSnapshot verified = snapshot.verify();
      EXPECT_EQ(verified.blocks, 20);
      EXPECT_EQ(verified.records, scorer == Scorer::kNone ? 0 : 9);
    }
  }
}

TEST(Snapshot, takes_fewer_chunks_than_ranks) {
  const TemporaryFolder folder;
  SnapshotCase kept;
  kept.problem.tokens = 1;
  kept.problem.cu_seqlens = {};
  kept.write(4, folder.file("kept"));
  EXPECT_TRUE(kept.equals(Snapshot::open(folder.file("kept"))));
}

TEST(Snapshot, keeps_the_last_two_generations_and_touches_nothing_else) {
  const TemporaryFolder folder;
  fs::create_directories(folder.file("kept/generation-000001"));  // a killed writer's
  std::ofstream(folder.file("kept/generation-000001/shard-00000.safetensors")) << "half";
  fs::create_directories(folder.file("kept/generation-7/mine"));
  fs::create_directories(folder.file("kept/generation-0000002/mine"));
  fs::create_directories(folder.file("elsewhere"));
  fs::create_directory_symlink(folder.file("elsewhere"), folder.file("kept/generation-000009"));
  std::ofstream(folder.file("kept/notes.txt")) << "mine";
  std::ofstream(folder.file("kept/generation-000003")) << "a file, not a folder";
  SnapshotCase kept;
  for (const std::uint64_t expected : {2u, 4u, 5u}) {
    if (expected == 4) fs::remove(folder.file("kept/generation-000003"));
    if (expected == 4) fs::create_directory(folder.file("kept/generation-000003"));
    kept.seed = static_cast<std::uint32_t>(expected);
    EXPECT_EQ(kept.write(2, folder.file("kept")), expected);
  }
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.file("kept"))) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"generation-000004", "generation-000005", "generation-7",
                                          "generation-0000002", "generation-000009", "notes.txt"}));
  EXPECT_TRUE(kept.equals(Snapshot::open(folder.file("kept"))));
}

TEST(Snapshot, what_is_no_snapshot_is_named) {
  const TemporaryFolder folder;
  fs::create_directory(folder.file("empty"));
  for (const char* name : {"empty", "missing"}) {
    const Error error = error_of([&] { Snapshot::open(folder.file(name)); });
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find(folder.file(name)), std::string::npos) << error.what();
  }
  fs::create_directory(folder.file("empty/generation-000004"));
  const Error error = error_of([&] {
    comm::run_thread_ranks(3, [&](comm::Communicator& ranks) { Snapshot::open(ranks, folder.file("empty")); });
  });
  EXPECT_EQ(error.code(), ExitCode::kBadInput);
  EXPECT_NE(std::string(error.what()).find("generation-000004/manifest.json"), std::string::npos) << error.what();
}

TEST(Snapshot, a_torn_newest_generation_falls_back_for_all_ranks_together) {
  const std::vector<std::function<void(const fs::path&)>> faults = {
      [](const fs::path& g) { fs::remove(g / "manifest.json"); },
      [](const fs::path& g) { fs::remove(g / "shard-00001.safetensors"); },
      [](const fs::path& g) { fs::resize_file(g / "shard-00002.safetensors", 100); },
      [](const fs::path& g) { fs::resize_file(g / "manifest.json", fs::file_size(g / "manifest.json") / 2); },
      [](const fs::path& g) { flip_bit(g / "shard-00000.safetensors", 8 * 20); },
      [](const fs::path& g) {  // each shard under the other's name
        fs::rename(g / "shard-00000.safetensors", g / "aside");
        fs::rename(g / "shard-00001.safetensors", g / "shard-00000.safetensors");
        fs::rename(g / "aside", g / "shard-00001.safetensors");
      }};
  for (const auto& fault : faults) {
    const TemporaryFolder folder;
    SnapshotCase older, newer;
    older.seed = 1;
    newer.seed = 2;
    older.write(3, folder.file("kept"));
    newer.write(3, folder.file("kept"));
    fault(folder.file("kept/generation-000002"));
    comm::run_thread_ranks(4, [&](comm::Communicator& ranks) {
      const Snapshot snapshot = Snapshot::open(ranks, folder.file("kept"));
      EXPECT_EQ(snapshot.manifest().generation, 1u);
      EXPECT_EQ(snapshot.passed_over().size(), 1u);
      EXPECT_TRUE(older.equals(snapshot));
    });
  }
}

TEST(Snapshot, no_rank_falls_back_alone) {
  const TemporaryFolder folder;
  SnapshotCase older, newer;
  older.seed = 1;
  newer.seed = 2;
  older.write(2, folder.file("all"));
  newer.write(2, folder.file("all"));
  // Rank 1 sees a copy in which the newest generation is torn, as on a file system that lags behind.
  fs::copy(folder.file("all"), folder.file("lagging"), fs::copy_options::recursive);
  fs::remove(folder.file("lagging/generation-000002/manifest.json"));
  comm::run_thread_ranks(3, [&](comm::Communicator& ranks) {
    const Snapshot snapshot = Snapshot::open(ranks, folder.file(ranks.rank() == 1 ? "lagging" : "all"));
    EXPECT_TRUE(older.equals(snapshot)) << "rank " << ranks.rank();
  });
  // Rank 1 sees a folder of its own.
  newer.write(2, folder.file("own"));
  newer.write(1, folder.file("own"));
  const Error error = error_of([&] {
    comm::run_thread_ranks(
        3, [&](comm::Communicator& ranks) { Snapshot::open(ranks, folder.file(ranks.rank() == 1 ? "own" : "all")); });
  });
  EXPECT_EQ(error.code(), ExitCode::kBadInput);
  EXPECT_NE(std::string(error.what()).find("not shared"), std::string::npos) << error.what();
}

// The bit flips of the corruption requirement: opening or reading names the file; nothing wrong is ever returned.
TEST(Snapshot, two_hundred_flipped_bits_are_found_and_named) {
  const TemporaryFolder folder;
  SnapshotCase kept;
  kept.format = BlockFormat::kInt8;
  kept.write(3, folder.file("kept"));
  const fs::path generation = folder.file("kept/generation-000001");
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(generation)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    const fs::path& file = files[static_cast<std::size_t>(i) % files.size()];
    const std::size_t bit = random() % (fs::file_size(file) * 8);
    flip_bit(file, bit);
    bool equal = false;
    const Error error = error_of([&] { equal = kept.equals(Snapshot::open(folder.file("kept"))); });
    EXPECT_FALSE(equal);
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find(file.filename().string()), std::string::npos)
        << "bit " << bit << " of " << file << ": " << error.what();
    EXPECT_EQ(error_of([&] { Snapshot::open(folder.file("kept")).verify(); }).code(), ExitCode::kBadInput);
    flip_bit(file, bit);
  }
  EXPECT_TRUE(kept.equals(Snapshot::open(folder.file("kept"))));
}

TEST(Snapshot, a_damaged_block_is_named_by_file_chunk_and_head) {
  const TemporaryFolder folder;
  const SnapshotCase kept;
  kept.write(1, folder.file("kept"));
  const fs::path shard = folder.file("kept/generation-000001/shard-00000.safetensors");
  flip_bit(shard, fs::file_size(shard) * 8 - 1);  // the last block of the last closed chunk
  const Snapshot snapshot = Snapshot::open(folder.file("kept"));
  const std::string text = error_of([&] { snapshot.verify(); }).what();
  EXPECT_NE(text.find("shard-00000.safetensors: chunk 9, kv head 1"), std::string::npos) << text;
}

TEST(Snapshot, a_shard_that_is_cut_at_any_byte_is_found) {
  const TemporaryFolder folder;
  const SnapshotCase kept;
  kept.write(2, folder.file("kept"));
  const fs::path shard = folder.file("kept/generation-000001/shard-00001.safetensors");
  const std::string whole = TemporaryFolder::read(shard.string());
  for (std::size_t length = 0; length < whole.size(); length += 97) {
    std::ofstream(shard, std::ios::binary) << whole.substr(0, length);
    EXPECT_EQ(error_of([&] { Snapshot::open(folder.file("kept")); }).code(), ExitCode::kBadInput) << length;
  }
}

void expect_only_the_first(const fs::path& folder, const SnapshotCase& first) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  EXPECT_EQ(names, std::set<std::string>{"generation-000001"});
  EXPECT_TRUE(first.equals(Snapshot::open(folder)));
}

// Larger than what a limit below allows, on rank 1 of 2 too.
SnapshotCase large_case() {
  SnapshotCase large;
  large.problem.tokens = 4000;
  large.problem.cu_seqlens = {};
  return large;
}

TEST(Snapshot, a_write_that_fails_leaves_the_generation_before_and_nothing_else) {
  const TemporaryFolder folder;
  const SnapshotCase first;
  first.write(2, folder.file("kept"));
  // As from `ulimit -f`; the signal that comes with it would end the process.
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{20'000, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Error error = error_of([&] { large_case().write(2, folder.file("kept")); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(error.code(), ExitCode::kEnvironment) << error.what();
  const std::string text = error.what();
  EXPECT_NE(text.find("bytes"), std::string::npos) << text;
  EXPECT_NE(text.find("generation-000002/shard-"), std::string::npos) << text;
  expect_only_the_first(folder.file("kept"), first);
}

TEST(Snapshot, a_rank_that_fails_fails_all_and_leaves_nothing) {
  const TemporaryFolder folder;
  const SnapshotCase first;
  first.write(2, folder.file("kept"));
  comm::run_thread_ranks(3, [&](comm::Communicator& ranks) {
    // Nobody brings a chunk: the shards can be written, rank 0 refuses the manifest.
    const SnapshotContents nothing{3, first.problem, first.policy, first.format, {}, {}};
    const Error error = error_of([&] { write_snapshot(ranks, folder.file("kept"), nothing); });
    EXPECT_EQ(error.code(), ExitCode::kBadInput) << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with("rank 0: ")) << error.what();
  });
  expect_only_the_first(folder.file("kept"), first);
}

TEST(Snapshot, a_folder_that_cannot_be_used_is_named_before_and_while_writing) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("file")) << "mine";
  const SnapshotCase kept;
  for (const char* name : {"file", "missing/kept"}) {
    const Error before = error_of([&] { check_snapshot_folder(folder.file(name), 1); });
    EXPECT_EQ(before.code(), ExitCode::kBadInput);
    EXPECT_NE(std::string(before.what()).find(folder.file(name)), std::string::npos) << before.what();
    EXPECT_EQ(error_of([&] { kept.write(2, folder.file(name)); }).code(), ExitCode::kBadInput);
  }
  check_snapshot_folder(folder.file("new"), 1);
  check_snapshot_folder(folder.file("new/"), 1);
  EXPECT_FALSE(fs::exists(folder.file("new")));
  const Error full = error_of([&] { check_snapshot_folder(folder.file("new"), std::int64_t{1} << 60); });
  EXPECT_EQ(full.code(), ExitCode::kEnvironment);
  EXPECT_NE(std::string(full.what()).find("1152921504606846976 bytes"), std::string::npos) << full.what();
  EXPECT_EQ(folder.names(), std::vector<std::string>{"file"});
}

// A mapped file that shrinks would end the process by SIGBUS (59 of the second list).
TEST(Snapshot, a_shard_that_shrinks_after_opening_is_an_error_with_its_name) {
  const TemporaryFolder folder;
  const SnapshotCase kept;
  kept.write(1, folder.file("kept"));
  const Snapshot snapshot = Snapshot::open(folder.file("kept"));
  const fs::path shard = folder.file("kept/generation-000001/shard-00000.safetensors");
  fs::resize_file(shard, fs::file_size(shard) / 2);
  const Error error = error_of([&] { snapshot.verify(); });
  EXPECT_EQ(error.code(), ExitCode::kBadInput);
  EXPECT_NE(std::string(error.what()).find(shard.string()), std::string::npos) << error.what();
}

// What is being read stays, whatever later writers remove (4, 54 of the second list).
TEST(Snapshot, a_generation_that_is_removed_stays_readable_while_it_is_open) {
  const TemporaryFolder folder;
  SnapshotCase first, later;
  first.write(2, folder.file("kept"));
  const Snapshot open = Snapshot::open(folder.file("kept"));
  for (const std::uint32_t seed : {1u, 2u}) {
    later.seed = seed;
    later.write(3, folder.file("kept"));
  }
  EXPECT_FALSE(fs::exists(folder.file("kept/generation-000001")));
  EXPECT_TRUE(first.equals(open));
  EXPECT_TRUE(later.equals(Snapshot::open(folder.file("kept"))));
}

TEST(Snapshot, says_how_many_bytes_it_holds) {
  const TemporaryFolder folder;
  const SnapshotCase kept;
  kept.write(1, folder.file("kept"));
  const auto file =
      static_cast<std::int64_t>(fs::file_size(folder.file("kept/generation-000001/shard-00000.safetensors")));
  const std::int64_t payload = snapshot_bytes(kept.problem, kept.policy, kept.format);
  EXPECT_GT(file, payload);
  EXPECT_LT(file, payload + 2000);
}

}  // namespace
}  // namespace ringmark::kvstore
