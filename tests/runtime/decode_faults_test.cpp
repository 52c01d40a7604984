// What must not be believed: blocks that came damaged, blocks that are not there yet, reads that never end, scales of
// other blocks. Numbers are those of the public bug reports in tests/README.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/faulty_transport.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "kvstore/block_cache.h"
#include "runtime/block_reader.h"
#include "tests/runtime/decode_checks.h"

namespace ringmark::test {
namespace {

using runtime::Exchange;

DecodeRun run_of(const TestLayer& layer, Exchange exchange, std::int64_t first) {
  DecodeRun run;
  run.options.exchange = exchange;
  run.options.costs = runtime::ExchangeCosts{1.0, 1.0};
  run.steps = make_steps(sequence_lengths(layer), first, 3, 1);
  return run;
}

// Two ranks that keep a layer; rank 1 reads blocks of rank 0, its first reads spoilt by a script.
class Reading {
 public:
  Reading(comm::Communicator& communicator, const TestLayer& layer, const std::vector<comm::Fault>& faults)
      : layer_(layer),
        chosen_(comm::choose_transport(communicator, comm::TransportChoice::kAuto)),
        faulty_(communicator, *chosen_.transport,
                {communicator.rank() == 1 ? faults : std::vector<comm::Fault>(), /*seed=*/3}),
        kept_(communicator, faulty_, {0, layer.problem, layer.policy, {}, 0}, 1),
        cache_(std::int64_t{1} << 20, runtime::BlockReader::entry_bytes(kept_.shape())),
        reader_(kept_, faulty_, cache_) {}
  ~Reading() { faulty_.retire(); }

  // Collective.
  void append(std::int64_t rows) {
    const std::vector<std::int64_t> sequences(static_cast<std::size_t>(rows), 0);
    const TokenRows taken = take_rows(layer_, kept_.place(sequences));
    kept_.append("append", taken.view(layer_.problem, sequences));
  }

  // "" when the block that is held is what the layer says, what is wrong otherwise.
  std::string hold(const runtime::BlockId& block) {
    std::string wrong;
    try {
      reader_.hold({&block, 1});
      if (!holds(block)) wrong = "other bytes";
    } catch (const Error& error) {
      wrong = error.what();
    }
    reader_.release();
    return wrong;
  }
  runtime::BlockReader& reader() { return reader_; }
  std::int64_t injected() const { return faulty_.injected(); }

 private:
  bool holds(const runtime::BlockId& block) {
    const kernels::BlockShape shape = kernels::BlockShape::of(layer_.problem);
    const std::byte* key = reader_.table().keys(block.chunk, block.kv_head);
    const std::byte* value = reader_.table().values(block.chunk, block.kv_head);
    const TokenId first = kept_.grid().tokens_of(block.chunk).begin;
    for (std::int64_t slot = 0; slot < kChunk; ++slot, key += shape.row_bytes(), value += shape.row_bytes()) {
      const std::int64_t row = ((first + slot).value() * layer_.problem.kv_heads + block.kv_head) * shape.row_bytes();
      if (!std::equal(key, key + shape.row_bytes(), layer_.k.begin() + row)) return false;
      if (!std::equal(value, value + shape.row_bytes(), layer_.v.begin() + row)) return false;
    }
    return true;
  }

  const TestLayer& layer_;
  comm::ChosenTransport chosen_;
  comm::FaultyTransport faulty_;
  runtime::KeptLayer kept_;
  kvstore::BlockCache cache_;
  runtime::BlockReader reader_;
};

// A failed read was later served as a hit, or as success, elsewhere (1, 5 of the second list).
TEST(DecodeFaults, a_block_that_came_damaged_is_never_a_hit) {
  const TestLayer layer = one_sequence(4 * kChunk, 20, 1);
  for (const auto kind : {comm::FaultKind::kFlipBit, comm::FaultKind::kOtherOffset, comm::FaultKind::kTruncate,
                          comm::FaultKind::kError}) {
    comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
      Reading reading(communicator, layer, {{kind, 0, 1, {}}});
      reading.append(3 * kChunk);
      if (communicator.rank() == 1) {
        const runtime::BlockId block{ChunkId(2), 1};
        EXPECT_NE(reading.hold(block), "") << static_cast<int>(kind);
        EXPECT_EQ(reading.injected(), 1);
        EXPECT_FALSE(reading.reader().is_here(block));
        EXPECT_EQ(reading.hold(block), "") << static_cast<int>(kind);
        EXPECT_TRUE(reading.reader().is_here(block));
        EXPECT_EQ(reading.hold(block), "");
      }
      communicator.barrier("end of the readings");
    });
  }
}

// Blocks were read before they were whole, and stale ones stayed, elsewhere (3, 5 of the second list).
TEST(DecodeFaults, a_growing_block_is_not_read_and_leaves_nothing_stale) {
  const TestLayer layer = one_sequence(4 * kChunk, 20, 2);
  comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
    Reading reading(communicator, layer, {});
    const runtime::BlockId block{ChunkId(2), 0};
    reading.append(3 * kChunk - 1);
    if (communicator.rank() == 1) {
      EXPECT_NE(reading.hold(block), "");
      EXPECT_FALSE(reading.reader().is_here(block));
    }
    communicator.barrier("the chunk closes");
    reading.append(1);
    if (communicator.rank() == 1) {
      EXPECT_EQ(reading.hold(block), "");
    }
    communicator.barrier("the next chunk grows");
    reading.append(kChunk - 1);
    if (communicator.rank() == 1) {
      EXPECT_EQ(reading.hold(block), "");
      const auto counts = reading.reader().take_counts();
      EXPECT_EQ(counts.cache_hits, 1);
    }
    communicator.barrier("end of the readings");
  });
}

// A read that is lost or refused ends the step within the timeout; the line says where (20, 25 of the second list).
TEST(DecodeFaults, a_read_that_never_ends_is_named) {
  const TestLayer layer = one_sequence(100, 20, 5);
  for (const auto kind : {comm::FaultKind::kDrop, comm::FaultKind::kError}) {
    DecodeRun run = run_of(layer, Exchange::kPull, 60);
    run.wrap = [&](comm::Communicator& communicator, comm::BlockTransport& inner) {
      comm::FaultScript script;
      if (communicator.rank() == 1) script.faults = {{kind, 1, 1, {}}};
      return std::make_unique<comm::FaultyTransport>(communicator, inner, script);
    };
    try {
      comm::run_thread_ranks(
          2, [&](comm::Communicator& communicator) { run_decode(communicator, layer, run); }, std::chrono::seconds(1));
      FAIL() << "went on";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kPeer);
      const std::string text = error.what();
      for (const char* word : {"rank 1", "rank 0", "layer 0 step "}) {
        EXPECT_NE(text.find(word), std::string::npos) << text;
      }
    }
  }
}

// Chunks, and so the blocks of different ranks, differ in size by up to 2^9: scales of one block or rank used for
// another would show (47).
TEST(DecodeFaults, scales_belong_to_their_blocks_on_any_ranks) {
  TestLayer layer = one_sequence(12 * kChunk, 20, 7);
  const std::int64_t width = layer.problem.kv_heads * layer.problem.head_dim;
  const auto magnify = [&](std::vector<std::byte>& bytes, double most) {
    std::vector<float> row(static_cast<std::size_t>(width));
    for (std::int64_t token = 0; token < layer.problem.tokens; ++token) {
      std::byte* at = bytes.data() + token * width * size_of(layer.problem.dtype);
      widen(at, layer.problem.dtype, width, row.data());
      const double factor = std::pow(most, static_cast<double>(token / kChunk % 4) / 3.0);
      for (float& value : row) value *= static_cast<float>(factor);
      narrow(row.data(), layer.problem.dtype, width, at);
    }
  };
  constexpr double kLargestValue = 512.0;
  magnify(layer.k, 2.0);
  magnify(layer.v, kLargestValue);
  for (const auto format : {kvstore::BlockFormat::kInt8, kvstore::BlockFormat::kFp8, kvstore::BlockFormat::kInt4}) {
    DecodeRun run = run_of(layer, Exchange::kPull, 100);
    run.format = format;
    DecodeOutcome alone;
    comm::run_thread_ranks(1, [&](comm::Communicator& ranks) { alone = run_decode(ranks, layer, run); });
    const std::vector<double> wanted(alone.result.out.begin(), alone.result.out.end());
    for (const Exchange exchange : {Exchange::kPull, Exchange::kPush, Exchange::kAuto}) {
      comm::run_thread_ranks(4, [&](comm::Communicator& ranks) {
        run.options.exchange = exchange;
        const DecodeOutcome sharded = run_decode(ranks, layer, run);
        EXPECT_EQ(sharded.result.chunks, alone.result.chunks);
        EXPECT_LE(max_difference(sharded.result.out, wanted),
                  exchange == Exchange::kPull ? 0.0 : kMergeError * kLargestValue)
            << name_of(format) << " " << name_of(exchange);
      });
    }
  }
}

}  // namespace
}  // namespace ringmark::test
