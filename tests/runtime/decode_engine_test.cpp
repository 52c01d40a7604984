// What decoding promises of every backend, with ranks as threads: the same tests for the CPU and for the GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "comm/thread_ranks.h"
#include "core/error.h"
#include "tests/kvstore/temporary_folder.h"
#include "tests/runtime/decode_checks.h"
#include "tests/support/golden_layer.h"

namespace ringmark::test {
namespace {

using runtime::Exchange;

class DecodeEngine : public testing::Test {
 protected:
  void SetUp() override {
    if (!engine_under_test().available()) GTEST_SKIP() << "no GPU here";
  }
};

// Prefill N, then 1, 2, S-1, S, S+1 and 3S tokens, one by one and several at a time.
TEST_F(DecodeEngine, equals_one_prefill_at_every_split) {
  for (const std::int64_t kept : {80, 85}) {
    for (const std::int64_t more : {std::int64_t{1}, std::int64_t{2}, kChunk - 1, kChunk, kChunk + 1, 3 * kChunk}) {
      const TestLayer layer = one_sequence(kept + more, 20, static_cast<std::uint64_t>(kept + more));
      check_on({1, 2, 4, 5}, layer, run_of(layer, Exchange::kAuto, kept, 1, 1));
      check_on({4}, layer, run_of(layer, Exchange::kPull, kept, 7, 2));
      check_on({5}, layer, run_of(layer, Exchange::kPush, kept, 7, 2));
    }
  }
}

TEST_F(DecodeEngine, batches_of_sequences_that_end_at_different_times) {
  std::uint64_t seed = 1;
  for (const std::int64_t group : {1, 2, 4}) {
    for (const Scorer scorer : {Scorer::kHils, Scorer::kMean, Scorer::kOracle, Scorer::kNone}) {
      const TestLayer layer = batch_layer(group, scorer, ++seed);
      for (const Exchange exchange : {Exchange::kAuto, Exchange::kPull, Exchange::kPush}) {
        check_on({1, 4}, layer, run_of(layer, exchange, 30, 11, seed));
      }
    }
  }
}

TEST_F(DecodeEngine, every_window) {
  for (const std::int64_t window : {0, 1, 16, 17, 60, 1000}) {
    const TestLayer layer = one_sequence(150, window, static_cast<std::uint64_t>(window));
    for (const Exchange exchange : {Exchange::kPull, Exchange::kPush}) {
      check_on({1, 4}, layer, run_of(layer, exchange, 60, 5, 3));
    }
  }
}

// More rows than a tile: a whole prefill as one step.
TEST_F(DecodeEngine, tiles_of_a_long_step) {
  const TestLayer layer = one_sequence(300, 40, 9);
  for (const std::int64_t tile : {1, 50, 1000}) {
    DecodeRun run = run_of(layer, Exchange::kAuto, 290, 10, 4);
    run.options.tile_rows = tile;
    check_on({1, 3}, layer, run);
  }
}

// A row that does not fit is refused before anything is done.
TEST_F(DecodeEngine, full_and_unknown_sequences_are_refused) {
  const TestLayer layer = one_sequence(20, 16, 3);
  comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
    const TestDecoder decoder = engine_under_test().decoder(communicator, {0, layer.problem, layer.policy, {}, 0}, {});
    const auto error_of = [&](const std::vector<std::int64_t>& sequences) -> std::string {
      const TokenRows rows = take_rows(layer, std::vector<TokenId>(sequences.size(), TokenId(0)));
      try {
        decoder.engine->step(rows.view(layer.problem, sequences), false);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kBadInput);
        return error.what();
      }
      return "accepted";
    };
    EXPECT_EQ(error_of(std::vector<std::int64_t>(21, 0)), "row 20 continues sequence 0, which is full at 20 tokens");
    EXPECT_EQ(decoder.engine->sequences().length(0), 0);
    EXPECT_EQ(error_of({0, 1}), "row 1 continues sequence 1; sequences are 0 to 0");
    EXPECT_EQ(error_of({-1}), "row 0 continues sequence -1; sequences are 0 to 0");
    decoder.transports.back()->retire();
  });
}

// Where blocks are read and not pushed, one rank and five give the same bits.
TEST_F(DecodeEngine, bits_do_not_depend_on_the_rank_count) {
  for (const std::int64_t group : {1, 4}) {
    const TestLayer layer = batch_layer(group, Scorer::kHils, 2);
    const DecodeRun run = run_of(layer, Exchange::kPull, 30, 11, 5);
    DecodeOutcome alone;
    comm::run_thread_ranks(1, [&](comm::Communicator& ranks) { alone = run_decode(ranks, layer, run); });
    for (const int ranks : {2, 5}) {
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
        const DecodeOutcome sharded = run_decode(communicator, layer, run);
        EXPECT_EQ(sharded.result.out, alone.result.out);
        EXPECT_EQ(sharded.result.lse, alone.result.lse);
        EXPECT_EQ(sharded.result.chunks, alone.result.chunks);
        EXPECT_GT(sharded.traffic.blocks_pulled, 0);
      });
    }
  }
}

// A snapshot in the middle, with chunks that are growing; other ranks go on.
TEST_F(DecodeEngine, goes_on_from_its_own_snapshots) {
  for (const std::int64_t sinks_of_seed : {4, 5}) {
    const TestLayer layer = batch_layer(2, Scorer::kHils, static_cast<std::uint64_t>(sinks_of_seed));
    const TemporaryFolder folder;
    DecodeRun first = run_of(layer, Exchange::kPull, 30, 11, 7);
    DecodeRun rest = first;
    first.save = rest.snapshot = folder.file("kept");
    const auto middle = static_cast<std::ptrdiff_t>(first.steps.size() / 2);
    first.steps.erase(first.steps.begin() + middle, first.steps.end());
    rest.steps.erase(rest.steps.begin(), rest.steps.begin() + middle);
    check_on({3}, layer, first);
    check_on({1, 4}, layer, rest);
  }
}

// The real layer: 8000 tokens kept, the rest decoded.
TEST_F(DecodeEngine, golden_layer) {
  const GoldenLayer golden = load_golden(8192);
  for (const int ranks : {1, 4}) {
    comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
      DecodeRun run = run_of(golden.layer, Exchange::kAuto, 8000, 3, 1);
      const DecodeOutcome decoded = run_decode(communicator, golden.layer, run);
      EXPECT_LE(max_difference(decoded.result.out, golden.out), 5e-5);
      EXPECT_LE(max_difference(decoded.result.lse, golden.lse), engine_under_test().lse_error());
      EXPECT_EQ(decoded.result.digest, 0x1a88575264c5d822ull);
    });
  }
}

}  // namespace
}  // namespace ringmark::test
