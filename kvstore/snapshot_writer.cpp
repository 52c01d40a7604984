// Every rank makes its shard durable; then rank 0 commits the manifest; then older generations go. Until the manifest
// has its name there is no new generation, whatever has been written.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "kvstore/crc32c.h"
#include "kvstore/joint_step.h"
#include "kvstore/safetensors_writer.h"
#include "kvstore/snapshot.h"
#include "kvstore/snapshot_generations.h"
#include "kvstore/snapshot_shard.h"
#include "partition/sequence_grid.h"

namespace ringmark::kvstore {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKeptGenerations = 2;

std::string shard_name(int rank) { return fmt::format("shard-{:05d}.safetensors", rank); }

fs::path parent_of(const fs::path& folder) {
  const fs::path name = folder.has_filename() ? folder : folder.parent_path();  // "kept/" is "kept"
  return name.has_parent_path() ? name.parent_path() : fs::path(".");
}

// Two jobs that write into one folder would remove each other's unfinished generations. Released with the descriptor.
Descriptor lock_folder(const std::string& folder) {
  Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open()) fail_bad_input(fmt::format("{}: cannot open the folder: {}", folder, std::strerror(errno)));
  // File systems without locks are taken as they are.
  if (::flock(opened.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    fail_environment(fmt::format("{}: another job is writing a snapshot there", folder));
  }
  return opened;
}

// The file appears by rename, after every byte is on disk.
void write_text_durably(const fs::path& path, const std::string& text) {
  const std::string temporary = path.string() + ".tmp";
  Descriptor file(::open(temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666));
  const auto fail = [&](const char* what) {
    const int error = errno;
    ::unlink(temporary.c_str());
    fail_environment(fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(error)));
  };
  if (!file.is_open()) fail("create it");
  try {
    write_range(file, 0, std::as_bytes(std::span(text)), path.string());
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
  if (::fsync(file.number()) != 0) fail("sync it");
  if (::close(file.release()) != 0 && errno != EINTR) fail("close it");
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail("rename it");
}

class SnapshotWriter {
 public:
  SnapshotWriter(comm::Communicator& communicator, const fs::path& folder, const SnapshotContents& contents)
      : communicator_(communicator),
        folder_(folder),
        contents_(contents),
        grid_(contents.problem, contents.policy),
        shape_(ShardShape::of(contents.problem, contents.policy, contents.format)) {
    for (const KeptChunk& chunk : contents.chunks) shape_.add(grid_, contents.policy, chunk.chunk);
  }

  // What has no manifest is debris.
  ~SnapshotWriter() {
    if (keeps_files_ || generation_folder_.empty()) return;
    shard_.reset();
    ::unlink(shard_path().c_str());
    ::rmdir(generation_folder_.c_str());  // succeeds on the last rank
  }

  std::uint64_t write() {
    begin_generation();
    run_joint_step(communicator_, "reserve space for the snapshot", [&] { create_shard(); });
    run_joint_step(communicator_, "write the snapshot", [&] { write_shard(); });
    commit();
    remove_older();
    return generation_;
  }

 private:
  bool leads() const { return communicator_.rank() == 0; }
  std::string shard_path() const { return (generation_folder_ / shard_name(communicator_.rank())).string(); }

  void begin_generation() {
    run_joint_step(communicator_, "begin the snapshot", [&] {
      if (leads()) make_generation_folder();
    });
    generation_ = static_cast<std::uint64_t>(
        communicator_.gather_sizes("name the snapshot", static_cast<std::int64_t>(generation_))[0]);
    generation_folder_ = folder_ / generation_name(generation_);
  }

  void make_generation_folder() {
    std::error_code error;
    fs::create_directory(folder_, error);
    if (error) fail_bad_input(fmt::format("{}: cannot make the folder: {}", folder_.string(), error.message()));
    sync_folder(parent_of(folder_).string());
    lock_ = lock_folder(folder_.string());
    // Also behind a generation that was left unfinished.
    const std::vector<std::uint64_t> present = list_generations(folder_);
    generation_ = present.empty() ? 1 : present.front() + 1;
    if (generation_ > kMaxGeneration) {
      fail_bad_input(
          fmt::format("{}: generation {} is above the limit of {}", folder_.string(), generation_, kMaxGeneration));
    }
    const fs::path path = folder_ / generation_name(generation_);
    if (::mkdir(path.c_str(), 0777) != 0) {
      const int cause = errno;
      throw Error(cause == ENOSPC || cause == EDQUOT ? ExitCode::kEnvironment : ExitCode::kBadInput,
                  fmt::format("{}: cannot make the folder: {}", path.string(), std::strerror(cause)));
    }
    sync_folder(folder_.string());
  }

  void create_shard() {
    shard_.emplace(SafetensorsWriter::create(shard_path(), shape_.tensors(),
                                             {{"generation", std::to_string(generation_)},
                                              {"layer", std::to_string(contents_.layer)},
                                              {"shard", std::to_string(communicator_.rank())}}));
  }

  void write_shard() {
    const std::int64_t heads = shape_.kv_heads;
    std::vector<std::uint32_t> closed, growing, landmarks;
    for (const KeptChunk& chunk : contents_.chunks) {
      const bool full = grid_.tokens_of(chunk.chunk).size() == grid_.chunk_size();
      require(chunk.closed == full, "a chunk is closed when it is full");
      auto& checksums = chunk.closed ? closed : growing;
      const std::int64_t block_bytes = chunk.closed ? shape_.closed_bytes : shape_.growing_bytes;
      require(static_cast<std::int64_t>(chunk.blocks.size()) == heads * block_bytes, "a kept chunk has all its blocks");
      write_row(chunk.closed ? kBlocks : kTails, checksums.size() / static_cast<std::size_t>(heads), chunk.blocks);
      for (std::int64_t head = 0; head < heads; ++head) {
        checksums.push_back(crc32c(
            chunk.blocks.subspan(static_cast<std::size_t>(head * block_bytes), static_cast<std::size_t>(block_bytes))));
      }
      const bool has_landmark = contents_.policy.selects() && grid_.has_landmark(chunk.chunk);
      require(static_cast<std::int64_t>(chunk.landmark.size()) == (has_landmark ? shape_.record_floats : 0),
              "closed chunks of a layer that selects have a landmark, others none");
      if (!has_landmark) continue;
      write_row(kLandmarks, landmarks.size(), std::as_bytes(chunk.landmark));
      landmarks.push_back(crc32c(std::as_bytes(chunk.landmark)));
    }
    const auto write_table = [&](const char* name, std::int64_t rows, const std::vector<std::uint32_t>& checksums) {
      shard_->write_rows(name, {0, rows}, std::as_bytes(std::span(checksums)));
    };
    write_table(kBlockChecksums, shape_.closed, closed);
    write_table(kTailChecksums, shape_.growing, growing);
    write_table(kLandmarkChecksums, shape_.landmarks, landmarks);
    shard_->flush();
    shard_->commit();
  }

  void write_row(const char* tensor, std::size_t row, std::span<const std::byte> bytes) {
    const auto begin = static_cast<std::int64_t>(row);
    shard_->write_rows(tensor, {begin, begin + 1}, bytes);
  }

  void commit() {
    SnapshotManifest manifest{generation_,      contents_.layer,    contents_.problem, contents_.policy,
                              contents_.format, contents_.prefixes, gather_shards()};
    // Where a peer is lost on the way, the manifest may be there.
    keeps_files_ = true;
    try {
      run_joint_step(communicator_, "commit the snapshot", [&] {
        if (leads()) commit_manifest(manifest);
      });
    } catch (const JointError&) {
      keeps_files_ = false;
      throw;
    }
  }

  // What the manifest says of the shards, on every rank.
  std::vector<SnapshotShard> gather_shards() {
    SnapshotShard mine;
    run_joint_step(communicator_, "check the shards", [&] {
      mine.checksum = index_checksum(shard_path(), shape_);
      mine.bytes = static_cast<std::int64_t>(fs::file_size(shard_path()));
    });
    for (const KeptChunk& chunk : contents_.chunks) mine.chunks.push_back(chunk.chunk.value());
    const std::string_view stage = "gather the shards";
    const auto bytes = communicator_.gather_sizes(stage, mine.bytes);
    const auto checksums = communicator_.gather_sizes(stage, mine.checksum);
    const auto counts = communicator_.gather_sizes(stage, static_cast<std::int64_t>(mine.chunks.size()));
    std::vector<SnapshotShard> shards;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      shards.push_back({shard_name(static_cast<int>(rank)), bytes[rank], static_cast<std::uint32_t>(checksums[rank]),
                        std::vector<std::int64_t>(static_cast<std::size_t>(counts[rank]))});
    }
    std::vector<comm::Bytes> places;
    for (SnapshotShard& shard : shards) places.push_back(std::as_writable_bytes(std::span(shard.chunks)));
    communicator_.all_gather(stage, std::as_bytes(std::span(mine.chunks)), places);
    return shards;
  }

  void commit_manifest(const SnapshotManifest& manifest) {
    const fs::path path = generation_folder_ / kManifestName;
    const std::string text = manifest_text(manifest);
    parse_manifest(text, path.string());  // what the strict reader would refuse must not be written
    write_text_durably(path, text);
    try {
      sync_folder(generation_folder_.string());
      sync_folder(folder_.string());
    } catch (const Error&) {
      ::unlink(path.c_str());
      throw;
    }
  }

  // Whatever cannot be removed now is removed after the next snapshot.
  void remove_older() {
    if (!leads()) return;
    std::size_t complete = 1;
    for (const std::uint64_t generation : list_generations(folder_)) {
      if (generation >= generation_) continue;
      if (complete < kKeptGenerations && Snapshot::is_complete(folder_, generation)) {
        ++complete;
        continue;
      }
      // The manifest first: a generation that is half removed must not look like one that was damaged.
      std::error_code ignored;
      fs::remove(folder_ / generation_name(generation) / kManifestName, ignored);
      fs::remove_all(folder_ / generation_name(generation), ignored);
    }
  }

  comm::Communicator& communicator_;
  const fs::path& folder_;
  const SnapshotContents& contents_;
  partition::SequenceGrid grid_;
  ShardShape shape_;
  Descriptor lock_;  // rank 0
  std::uint64_t generation_ = 0;
  fs::path generation_folder_;
  std::optional<SafetensorsWriter> shard_;
  bool keeps_files_ = false;
};

}  // namespace

std::int64_t snapshot_bytes(const AttentionProblem& problem, const AttentionPolicy& policy, BlockFormat format) {
  const partition::SequenceGrid grid(problem, policy);
  ShardShape all = ShardShape::of(problem, policy, format);
  for (ChunkId chunk(0); chunk < ChunkId(grid.chunk_count()); ++chunk) all.add(grid, policy, chunk);
  return all.bytes();
}

void check_snapshot_folder(const fs::path& folder, std::int64_t bytes) {
  std::error_code ignored;
  const bool exists = fs::exists(folder, ignored);
  const std::string where = (exists ? folder : parent_of(folder)).string();
  if (!fs::is_directory(where, ignored)) {
    fail_bad_input(fmt::format("{}: no snapshot can be written there: {} is no folder", folder.string(), where));
  }
  if (::access(where.c_str(), R_OK | W_OK | X_OK) != 0) {
    fail_bad_input(
        fmt::format("{}: no snapshot can be written there: {}: {}", folder.string(), where, std::strerror(errno)));
  }
  struct statvfs disk {};
  if (::statvfs(where.c_str(), &disk) != 0) return;  // the writer reserves
  const auto free_bytes = static_cast<std::int64_t>(std::uint64_t{disk.f_bavail} * disk.f_frsize);
  if (free_bytes < bytes) {
    fail_environment(
        fmt::format("{}: the snapshot needs {} bytes of disk space, {} are free", folder.string(), bytes, free_bytes));
  }
}

void check_can_be_kept(const AttentionProblem& problem, const AttentionPolicy& policy) {
  const std::string field = beyond_plain_logits(problem, policy);
  if (!field.empty()) fail_bad_input(field + " cannot be kept: a snapshot has no place for it");
}

std::uint64_t write_snapshot(comm::Communicator& communicator, const fs::path& folder,
                             const SnapshotContents& contents) {
  check_can_be_kept(contents.problem, contents.policy);
  return SnapshotWriter(communicator, folder, contents).write();
}

}  // namespace ringmark::kvstore
