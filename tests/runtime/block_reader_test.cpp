#include "runtime/block_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "comm/loopback_transport.h"
#include "comm/thread_ranks.h"
#include "runtime/layer_shard.h"

namespace ringmark::runtime {
namespace {

constexpr std::int64_t kChunks = 4;  // two a rank
constexpr auto kAsInput = kvstore::BlockFormat::kAsInput;

// Knows how often it was asked.
class CountingTransport final : public comm::BlockTransport {
 public:
  explicit CountingTransport(comm::BlockTransport& of) : of_(of) {}
  std::string_view name() const override { return of_.name(); }
  comm::Bytes expose(std::int64_t bytes) override { return of_.expose(bytes); }
  void publish() override { of_.publish(); }
  std::unique_ptr<comm::PendingReads> get(std::span<const comm::RemoteRead> reads) override {
    ++batches;
    return of_.get(reads);
  }
  void retire() override { of_.retire(); }

  int batches = 0;

 private:
  comm::BlockTransport& of_;
};

KeptShape four_chunks() {
  KeptShape shape;
  shape.problem.tokens = kChunks * 16;
  shape.problem.heads = 2;
  shape.problem.kv_heads = 1;
  shape.problem.head_dim = 8;
  shape.problem.chunk_size = 16;
  shape.policy.topk = 2;
  return shape;
}

// Two ranks that keep four chunks of random finite values.
template <class Check>
void with_kept_layer(kvstore::BlockFormat format, std::int64_t cached_blocks, Check check) {
  comm::run_thread_ranks(2, [&](comm::Communicator& ranks) {
    KeptShape shape = four_chunks();
    shape.format = format;
    comm::LoopbackTransport memory(ranks);
    CountingTransport transport(memory);
    KeptLayer layer(ranks, transport, shape, 1);
    LayerShard rows(shape.problem, shape.problem.tokens, false);
    std::mt19937 random(5);
    for (auto* const bytes : {&rows.q(), &rows.k(), &rows.v()}) {
      for (std::byte& byte : *bytes) byte = static_cast<std::byte>(random() & 0x3F);
    }
    const std::vector<std::int64_t> sequences(static_cast<std::size_t>(shape.problem.tokens), 0);
    layer.append("fill", {sequences, rows.queries(), rows.queries(), rows.keys(), rows.values()});
    kvstore::BlockCache cache(cached_blocks * BlockReader::entry_bytes(shape), BlockReader::entry_bytes(shape));
    BlockReader reader(layer, transport, cache);
    std::vector<BlockId> remote;
    for (std::int64_t n = 0; n < kChunks; ++n) {
      if (layer.layout().owner(ChunkId(n)) != layer.rank()) remote.push_back({ChunkId(n), 0});
    }
    check(layer, transport, reader, remote, rows);
    transport.retire();
  });
}

// K of a chunk as the table of the reader has it, against the rows that were appended.
bool holds(BlockReader& reader, const BlockId& block, const LayerShard& rows) {
  const std::byte* const keys = reader.table().keys(block.chunk, block.kv_head);
  return keys != nullptr && std::equal(keys, keys + 16 * 16, rows.keys().row(16 * block.chunk.value(), 0));
}

TEST(BlockReader, what_was_started_is_not_read_again) {
  with_kept_layer(kAsInput, 4,
                  [](const KeptLayer&, const CountingTransport& transport, BlockReader& reader,
                     const std::vector<BlockId>& remote, const LayerShard& rows) {
                    reader.start(remote);
                    EXPECT_EQ(transport.batches, 1);
                    EXPECT_EQ(reader.table().keys(remote[0].chunk, 0), nullptr);
                    reader.hold(remote);
                    EXPECT_EQ(transport.batches, 1);
                    for (const BlockId& block : remote) EXPECT_TRUE(holds(reader, block, rows));
                    const BlockReader::Counts counts = reader.take_counts();
                    EXPECT_EQ(counts.blocks_pulled, 2);
                    EXPECT_EQ(counts.cache_hits, 0);
                    reader.release();
                    // Now they are here.
                    reader.start(remote);
                    reader.hold(remote);
                    EXPECT_EQ(transport.batches, 1);
                    EXPECT_EQ(reader.take_counts().cache_hits, 2);
                    reader.release();
                  });
}

TEST(BlockReader, own_blocks_do_not_end_what_was_started) {
  with_kept_layer(kAsInput, 4,
                  [](const KeptLayer& layer, const CountingTransport& transport, BlockReader& reader,
                     const std::vector<BlockId>& remote, const LayerShard& rows) {
                    reader.start(remote);
                    const std::vector<BlockId> own = {{layer.layout().chunks_of(layer.rank())[0], 0}};
                    reader.hold(own);
                    EXPECT_TRUE(holds(reader, own[0], rows));
                    reader.release();
                    reader.hold(remote);
                    EXPECT_EQ(transport.batches, 1);
                    for (const BlockId& block : remote) EXPECT_TRUE(holds(reader, block, rows));
                    reader.release();
                  });
}

TEST(BlockReader, what_is_here_already_is_not_started) {
  with_kept_layer(kAsInput, 2,
                  [](const KeptLayer&, const CountingTransport& transport, BlockReader& reader,
                     const std::vector<BlockId>& remote, const LayerShard& rows) {
                    const std::span<const BlockId> first = std::span(remote).first(1);
                    reader.hold(first);
                    reader.release();
                    reader.start(remote);
                    EXPECT_EQ(transport.batches, 2);
                    reader.hold(remote);
                    EXPECT_EQ(transport.batches, 2);
                    for (const BlockId& block : remote) EXPECT_TRUE(holds(reader, block, rows));
                    reader.release();
                    EXPECT_EQ(reader.take_counts().blocks_pulled, 2);
                  });
}

// Own blocks that are kept otherwise than the kernels read them go through the cache, too.
TEST(BlockReader, what_leaves_after_the_start_is_read_with_the_rest) {
  with_kept_layer(kvstore::BlockFormat::kInt8, 2,
                  [](const KeptLayer& layer, const CountingTransport& transport, BlockReader& reader,
                     const std::vector<BlockId>& remote, const LayerShard&) {
                    reader.hold(std::span(remote).first(1));
                    reader.release();
                    reader.start(remote);
                    EXPECT_EQ(transport.batches, 2);
                    std::vector<BlockId> own;
                    for (const ChunkId chunk : layer.layout().chunks_of(layer.rank())) own.push_back({chunk, 0});
                    reader.hold(own);
                    reader.release();
                    reader.hold(remote);
                    EXPECT_EQ(transport.batches, 3);
                    for (const BlockId& block : remote) EXPECT_NE(reader.table().keys(block.chunk, 0), nullptr);
                    reader.release();
                    EXPECT_EQ(reader.take_counts().blocks_pulled, 3);
                  });
}

}  // namespace
}  // namespace ringmark::runtime
