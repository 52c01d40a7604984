#include <fmt/format.h>

#include <array>
#include <functional>
#include <limits>
#include <utility>

#include "core/error.h"
#include "kvstore/crc32c.h"
#include "kvstore/joint_step.h"
#include "kvstore/safetensors_io.h"
#include "kvstore/snapshot.h"
#include "kvstore/snapshot_generations.h"
#include "kvstore/snapshot_shard.h"
#include "partition/sequence_grid.h"

namespace ringmark::kvstore {

namespace fs = std::filesystem;

struct Snapshot::Opened {
  struct Place {
    std::size_t shard = 0;
    ShardPlace in_shard;
  };

  // Throws Error(kBadInput) naming what is missing or damaged; blocks are not read.
  Opened(const fs::path& folder, std::uint64_t generation)
      : Opened(folder / generation_name(generation), read_manifest(folder / generation_name(generation))) {
    if (manifest.generation != generation) {
      fail_bad_input(fmt::format("{}/{}: generation = {} is not that of its folder",
                                 (folder / generation_name(generation)).string(), kManifestName, manifest.generation));
    }
  }

  Opened(const fs::path& folder, SnapshotManifest read)
      : manifest(std::move(read)),
        grid(manifest.problem, manifest.policy),
        empty_shard(ShardShape::of(manifest.problem, manifest.policy, manifest.format)),
        places(static_cast<std::size_t>(grid.chunk_count())) {
    for (const SnapshotShard& entry : manifest.shards) {
      ShardShape shape = empty_shard;
      for (const std::int64_t id : entry.chunks) place(ChunkId(id), shards.size(), shape);
      shards.emplace_back((folder / entry.file).string(), shape, entry);
    }
  }

  // The next chunk of a shard.
  void place(ChunkId chunk, std::size_t shard, ShardShape& shape) {
    const ShardShape before = shape;
    shape.add(grid, manifest.policy, chunk);
    const bool closed = shape.closed > before.closed;
    places[static_cast<std::size_t>(chunk.value())] = {
        shard,
        {closed ? before.closed : before.growing, closed, shape.landmarks > before.landmarks ? before.landmarks : -1}};
  }

  static SnapshotManifest read_manifest(const fs::path& folder) {
    const std::string path = (folder / kManifestName).string();
    const Descriptor file = open_for_reading(path);
    const std::int64_t bytes = regular_file_bytes(file, path);
    if (bytes > kMaxManifestBytes) {
      fail_bad_input(fmt::format("{}: has {} bytes, above the limit of {}", path, bytes, kMaxManifestBytes));
    }
    std::string text(static_cast<std::size_t>(bytes), '\0');
    read_range(file, 0, std::as_writable_bytes(std::span(text)), path);
    return parse_manifest(text, path);
  }

  // The newest complete generation that is not above `newest`; null when there is none. What is wrong with those above
  // it goes to `passed_over`.
  static std::unique_ptr<Opened> find(const fs::path& folder, std::uint64_t newest,
                                      std::vector<std::string>& passed_over) {
    for (const std::uint64_t generation : list_generations(folder)) {
      if (generation > newest) continue;
      try {
        return std::make_unique<Opened>(folder, generation);
      } catch (const Error& error) {
        passed_over.emplace_back(error.what());
      }
    }
    return nullptr;
  }

  SnapshotManifest manifest;
  partition::SequenceGrid grid;
  ShardShape empty_shard;
  std::vector<Place> places;  // by chunk
  std::vector<SnapshotShardFile> shards;
  std::vector<std::string> passed_over;
};

namespace {

constexpr std::uint64_t kAnyGeneration = std::numeric_limits<std::uint64_t>::max();

[[noreturn]] void fail_without_generation(const fs::path& folder, const std::vector<std::string>& passed_over) {
  fail_bad_input(fmt::format("{}: holds no complete snapshot{}", folder.string(),
                             passed_over.empty() ? "" : "; the newest: " + passed_over.front()));
}

struct LeastAndMost {
  std::int64_t least;
  std::int64_t most;
};

LeastAndMost over_ranks(comm::Communicator& communicator, std::int64_t value) {
  std::array<std::int64_t, 2> both = {-value, value};
  communicator.all_reduce_max("choose a generation", both);
  return {-both[0], both[1]};
}

}  // namespace

Snapshot::Snapshot(std::unique_ptr<Opened> opened) : opened_(std::move(opened)) {}
Snapshot::Snapshot(Snapshot&&) noexcept = default;
Snapshot::~Snapshot() = default;

Snapshot Snapshot::open(const fs::path& folder) {
  std::vector<std::string> passed_over;
  std::unique_ptr<Opened> opened = Opened::find(folder, kAnyGeneration, passed_over);
  if (opened == nullptr) fail_without_generation(folder, passed_over);
  opened->passed_over = std::move(passed_over);
  return Snapshot(std::move(opened));
}

// The ranks go down together until the newest generation of each is the same: none falls back alone.
Snapshot Snapshot::open(comm::Communicator& communicator, const fs::path& folder) {
  std::vector<std::string> passed_over;
  std::unique_ptr<Opened> opened;
  for (std::uint64_t newest = kAnyGeneration;;) {
    run_joint_step(communicator, "open the snapshot", [&] { opened = Opened::find(folder, newest, passed_over); });
    const auto mine = static_cast<std::int64_t>(opened ? opened->manifest.generation : 0);
    const LeastAndMost generations = over_ranks(communicator, mine);
    if (generations.least == generations.most) break;
    newest = static_cast<std::uint64_t>(generations.least);
  }
  run_joint_step(communicator, "open the snapshot", [&] {
    if (opened == nullptr) fail_without_generation(folder, passed_over);
  });
  const std::string text = manifest_text(opened->manifest);
  const LeastAndMost manifests = over_ranks(communicator, crc32c(std::as_bytes(std::span(text))));
  if (manifests.least != manifests.most) {
    fail_bad_input(fmt::format("{}: ranks see different snapshots there: the folder is not shared", folder.string()));
  }
  opened->passed_over = std::move(passed_over);
  return Snapshot(std::move(opened));
}

bool Snapshot::is_complete(const fs::path& folder, std::uint64_t generation) {
  try {
    const Opened opened(folder, generation);
    return true;
  } catch (const Error&) {
    return false;
  }
}

const SnapshotManifest& Snapshot::manifest() const { return opened_->manifest; }

const std::vector<std::string>& Snapshot::passed_over() const { return opened_->passed_over; }

bool Snapshot::has_landmark(ChunkId chunk) const {
  return opened_->places[static_cast<std::size_t>(chunk.value())].in_shard.landmark_row >= 0;
}

void Snapshot::read(ChunkId chunk, std::span<std::byte> blocks, std::span<float> landmark) const {
  const Opened::Place& place = opened_->places[static_cast<std::size_t>(chunk.value())];
  opened_->shards[place.shard].read(chunk, place.in_shard, blocks, landmark);
}

VerifiedSnapshot Snapshot::verify() const {
  const ShardShape& shape = opened_->empty_shard;
  std::vector<std::byte> blocks;
  std::vector<float> record(static_cast<std::size_t>(shape.record_floats));
  VerifiedSnapshot verified;
  for (ChunkId chunk(0); chunk < ChunkId(opened_->grid.chunk_count()); ++chunk) {
    const bool closed = opened_->places[static_cast<std::size_t>(chunk.value())].in_shard.closed;
    blocks.resize(static_cast<std::size_t>(shape.kv_heads * (closed ? shape.closed_bytes : shape.growing_bytes)));
    read(chunk, blocks, has_landmark(chunk) ? std::span(record) : std::span<float>());
    verified.blocks += shape.kv_heads;
    verified.records += has_landmark(chunk) ? 1 : 0;
  }
  return verified;
}

}  // namespace ringmark::kvstore
