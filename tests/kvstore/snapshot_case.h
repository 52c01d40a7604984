// A kept layer with bytes that follow from chunk and head alone, so that whoever reads it back can tell what is right.
#pragma once

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/thread_ranks.h"
#include "kernels/block_table.h"
#include "kernels/landmarks.h"
#include "kvstore/block_codec.h"
#include "kvstore/snapshot.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"

namespace ringmark::test {

struct SnapshotCase {
  AttentionProblem problem{150, 4, 2, 8, 16, DType::kBfloat16, 0.25f, true, {0, 70, 70, 150}};
  AttentionPolicy policy{32, 4, 0, Scorer::kHils};
  kvstore::BlockFormat format = kvstore::BlockFormat::kAsInput;
  std::uint32_t seed = 0;  // tells one generation from another

  partition::SequenceGrid grid() const { return {problem, policy}; }
  bool is_closed(ChunkId chunk) const { return grid().tokens_of(chunk).size() == problem.chunk_size; }
  bool has_landmark(ChunkId chunk) const { return policy.selects() && grid().has_landmark(chunk); }

  // All blocks of a chunk as they are kept.
  std::vector<std::byte> blocks(ChunkId chunk) const {
    const auto shape = kernels::BlockShape::of(problem);
    const kvstore::BlockCodec codec(format, shape);
    std::vector<std::byte> kept;
    for (std::int64_t head = 0; head < problem.kv_heads; ++head) {
      std::vector<std::byte> block(static_cast<std::size_t>(shape.bytes()));
      for (std::size_t i = 0; i + 1 < block.size(); i += 2) {
        const float value = static_cast<float>(mix(chunk, head, i) % 2001) / 1000.0f - 1.0f;
        narrow(&value, problem.dtype, 1, block.data() + i);
      }
      if (is_closed(chunk)) {
        std::vector<std::byte> encoded(static_cast<std::size_t>(codec.encoded_bytes()));
        codec.encode(block, encoded);
        block = encoded;
      }
      kept.insert(kept.end(), block.begin(), block.end());
    }
    return kept;
  }

  std::vector<float> landmark(ChunkId chunk) const {
    if (!has_landmark(chunk)) return {};
    const auto floats = kernels::LandmarkShape::of(problem, policy.scorer).record_floats();
    std::vector<float> record(static_cast<std::size_t>(floats));
    for (std::size_t i = 0; i < record.size(); ++i) record[i] = static_cast<float>(mix(chunk, 99, i) % 9973) - 5000.0f;
    return record;
  }

  // Collective.
  std::uint64_t write(comm::Communicator& ranks, const std::filesystem::path& folder) const {
    const partition::SequenceGrid chunks = grid();
    const auto layout = partition::make_layout(chunks, ranks.size(), partition::Balance::kZigzag);
    const std::vector<ChunkId>& own = layout.chunks_of(RankId(ranks.rank()));
    std::vector<std::vector<std::byte>> kept_blocks;
    std::vector<std::vector<float>> records;
    for (const ChunkId chunk : own) {
      kept_blocks.push_back(blocks(chunk));
      records.push_back(landmark(chunk));
    }
    kvstore::SnapshotContents contents{3, problem, policy, format, {}, {}};
    for (std::size_t i = 0; i < own.size(); ++i) {
      contents.chunks.push_back({own[i], is_closed(own[i]), kept_blocks[i], records[i]});
    }
    return kvstore::write_snapshot(ranks, folder, contents);
  }
  std::uint64_t write(int ranks, const std::filesystem::path& folder) const {
    std::uint64_t generation = 0;
    comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
      const std::uint64_t written = write(communicator, folder);
      if (communicator.rank() == 0) generation = written;
    });
    return generation;
  }

  // Whether all of a snapshot is, bit for bit, what this case writes. Throws what Snapshot throws.
  bool equals(const kvstore::Snapshot& snapshot) const {
    const partition::SequenceGrid chunks = grid();
    for (ChunkId chunk(0); chunk < ChunkId(chunks.chunk_count()); ++chunk) {
      const std::vector<std::byte> expected = blocks(chunk);
      const std::vector<float> record = landmark(chunk);
      std::vector<std::byte> found(expected.size());
      std::vector<float> found_record(record.size());
      snapshot.read(chunk, found, found_record);
      if (found != expected || found_record != record || snapshot.has_landmark(chunk) != has_landmark(chunk)) {
        return false;
      }
    }
    return snapshot.manifest().problem.tokens == problem.tokens && snapshot.manifest().layer == 3;
  }

 private:
  std::uint64_t mix(ChunkId chunk, std::int64_t head, std::size_t i) const {
    std::uint64_t x = static_cast<std::uint64_t>(chunk.value() * 1000003 + head * 7919 + static_cast<std::int64_t>(i)) +
                      std::uint64_t{seed} * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9u;
    return x ^ (x >> 29);
  }
};

}  // namespace ringmark::test
