// Decoding with ranks as threads.
#include "runtime/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "comm/faulty_transport.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "kvstore/snapshot.h"
#include "runtime/prefill_snapshot.h"
#include "tests/kvstore/temporary_folder.h"
#include "tests/runtime/decode_checks.h"
#include "tests/support/golden_layer.h"

namespace ringmark::test {
namespace {

using runtime::Exchange;

// The smallest cache that is accepted gives the bits of a large one.
TEST(DecodeOnThreads, a_cache_of_one_rows_needs) {
  for (const Exchange exchange : {Exchange::kPull, Exchange::kPush, Exchange::kAuto}) {
    const TestLayer layer = batch_layer(2, Scorer::kHils, 8);
    comm::run_thread_ranks(4, [&](comm::Communicator& communicator) {
      DecodeRun run = run_of(layer, exchange, 30, 11, 5);
      run.options.cache_bytes =
          runtime::Decoder::least_cache_bytes({0, layer.problem, layer.policy, {}, 0}, communicator.size());
      EXPECT_GT(run.options.cache_bytes, 0);
      check_decode(communicator, layer, run);
    });
  }
}

TEST(DecodeOnThreads, a_cache_below_one_rows_needs_is_refused) {
  const TestLayer layer = one_sequence(100, 20, 2);
  DecodeRun run = run_of(layer, Exchange::kAuto, 50, 3, 1);
  run.options.cache_bytes = 0;
  try {
    comm::run_thread_ranks(2, [&](comm::Communicator& communicator) { run_decode(communicator, layer, run); });
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    // A row chooses 3 chunks of 2 kv heads; an entry is a block of 2 x 16 x 32 bf16 values and 2 landmarks of 33
    // floats, 2312 bytes, rounded up to 64.
    EXPECT_STREQ(error.what(), "cache of 0 bytes is below the 14208 bytes that one row may need at once");
  }
  comm::run_thread_ranks(1, [&](comm::Communicator& communicator) { check_decode(communicator, layer, run); });
}

// The cost model: what is wanted again is pulled once and then found; what a row wants once is pushed.
TEST(DecodeOnThreads, rents_before_it_buys) {
  // Without a window nothing of the other rank is here for it.
  const TestLayer layer = one_sequence(180, 0, 4);
  comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
    DecodeRun run = run_of(layer, Exchange::kAuto, 120, 1, 1);
    run.options.costs = runtime::ExchangeCosts{1e9, 1.0};
    const auto dear = check_decode(communicator, layer, run);
    run.options.costs = runtime::ExchangeCosts{1.0, 1.0};
    const auto even = check_decode(communicator, layer, run);
    run.options.costs = runtime::ExchangeCosts{0.0, 1.0};
    const auto cheap = check_decode(communicator, layer, run);
    EXPECT_GT(dear.blocks_pushed, even.blocks_pushed);
    EXPECT_GT(even.blocks_pushed, 0);
    EXPECT_EQ(cheap.blocks_pushed, 0);
    EXPECT_LT(dear.blocks_pulled, even.blocks_pulled);
    EXPECT_GT(even.cache_hits, dear.cache_hits);
    EXPECT_GT(dear.bytes_pushed, 0);
    EXPECT_EQ(cheap.bytes_pushed, 0);
    // Only who decides as it goes has to say what it decided.
    EXPECT_GT(cheap.bytes_of_plans, 0);
    run.options.exchange = Exchange::kPush;
    EXPECT_EQ(check_decode(communicator, layer, run).bytes_of_plans, 0);
  });
}

TEST(DecodeOnThreads, quantised_blocks_change_no_choice) {
  // With one head a group the window, which is quantised, does not steer the choice.
  const TestLayer layer = batch_layer(1, Scorer::kHils, 6);
  using kvstore::BlockFormat;
  // The input is N(0, 1) in fp32 and out an average of V: bounds follow from the step of each format.
  const std::vector<std::pair<BlockFormat, double>> bounds = {
      {BlockFormat::kAsInput, kMergeError}, {BlockFormat::kFloat16, 2e-3}, {BlockFormat::kBfloat16, 1e-2},
      {BlockFormat::kInt8, 3e-2},           {BlockFormat::kFp8, 1.2e-1},   {BlockFormat::kInt4, 4e-1}};
  double error_before = 0.0;
  for (const auto& [format, bound] : bounds) {
    for (const int ranks : {1, 4}) {
      comm::run_thread_ranks(ranks, [&, format = format, bound = bound](comm::Communicator& communicator) {
        DecodeRun run = run_of(layer, Exchange::kAuto, 30, 11, 5);
        run.format = format;
        const DecodeOutcome kept = run_decode(communicator, layer, run);
        const GatheredResult whole = run_prefill(communicator, run.transport, layer, partition::Balance::kRotate, {});
        EXPECT_EQ(kept.result.digest, whole.digest) << name_of(format);
        const double error = max_difference(kept.result.out, std::vector<double>(whole.out.begin(), whole.out.end()));
        EXPECT_LE(error, bound) << name_of(format) << " on " << communicator.size();
        if (communicator.rank() == 0 && communicator.size() == 1) {
          std::printf("  %-9s largest error of o %.2e\n", std::string(name_of(format)).c_str(), error);
          EXPECT_GE(error, error_before) << name_of(format) << ": coarser than the format before";
          error_before = error;
        }
      });
    }
  }
}

// The kept lengths: a chunk that is full, one that is growing, one token, nothing.
const std::vector<std::int64_t> kept_lengths = {32, 77, 1, 0};

TestLayer layer_to_resume(std::int64_t sinks) {
  AttentionProblem problem;
  problem.cu_seqlens = {0, 60, 160, 161, 240};
  problem.tokens = problem.cu_seqlens.back();
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = 32;
  problem.chunk_size = kChunk;
  problem.scale = 1.0f / std::sqrt(32.0f);
  return random_layer(problem, {20, 3, sinks, Scorer::kHils}, 31);
}

// Prefill of what is kept at 4 ranks, with a snapshot at its end.
void keep_by_prefill(const TestLayer& layer, const std::filesystem::path& folder) {
  TestLayer kept = layer;
  std::vector<TokenId> tokens;
  kept.problem.cu_seqlens = {0};
  for (std::size_t s = 0; s < kept_lengths.size(); ++s) {
    for (std::int64_t n = 0; n < kept_lengths[s]; ++n) tokens.emplace_back(layer.problem.cu_seqlens[s] + n);
    kept.problem.cu_seqlens.push_back(kept.problem.cu_seqlens.back() + kept_lengths[s]);
  }
  kept.problem.tokens = kept.problem.cu_seqlens.back();
  TokenRows rows = take_rows(layer, tokens);
  kept.q = rows.q;
  kept.retrieval_q = rows.retrieval_q;
  kept.k = rows.k;
  kept.v = rows.v;
  comm::run_thread_ranks(4, [&](comm::Communicator& communicator) {
    runtime::PrefillOptions options;
    options.keep = [&](const runtime::PrefillState& state) {
      runtime::write_prefill_snapshot(communicator, {folder}, kept.problem, kept.policy, state);
    };
    run_prefill(communicator, comm::TransportChoice::kAuto, kept, partition::Balance::kZigzag, options);
  });
}

// Prefill and snapshot at 4 ranks; decode a part at 3, snapshot again, the rest at 1, 3 and 7.
TEST(DecodeOnThreads, goes_on_from_snapshots_at_any_rank_count) {
  for (const std::int64_t sinks : {0, 20}) {
    const TestLayer layer = layer_to_resume(sinks);
    for (const int ranks : {1, 3, 7}) {
      const TemporaryFolder folder;
      keep_by_prefill(layer, folder.file("kept"));
      Steps steps = make_steps(sequence_lengths(layer), 0, 9, 12);
      std::vector<std::int64_t> skipped = kept_lengths;
      for (auto& rows : steps) {
        std::erase_if(rows, [&](std::int64_t sequence) { return skipped[static_cast<std::size_t>(sequence)]-- > 0; });
      }
      DecodeRun first = run_of(layer, Exchange::kAuto, 0, 1, 1);
      first.snapshot = first.save = folder.file("kept");
      first.steps.assign(steps.begin(), steps.begin() + 12);
      check_on({3}, layer, first);
      DecodeRun rest = first;
      rest.options.exchange = Exchange::kPull;
      rest.steps.assign(steps.begin() + 12, steps.end());
      check_on({ranks}, layer, rest);
    }
  }
}

// A sequence cannot end before what is kept of it; a snapshot of one format goes on in another.
TEST(DecodeOnThreads, grows_a_snapshot_into_another_shape) {
  const TestLayer layer = layer_to_resume(0);
  const TemporaryFolder folder;
  keep_by_prefill(layer, folder.file("kept"));
  const kvstore::Snapshot snapshot = kvstore::Snapshot::open(folder.file("kept"));
  try {
    runtime::grown_shape(snapshot.manifest(), std::vector<std::int64_t>{32, 76, 1, 0});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_STREQ(error.what(), "capacity of sequence 1 = 76 is below the 77 tokens that are kept of it");
  }
  DecodeRun run = run_of(layer, Exchange::kPull, 0, 1, 1);
  run.snapshot = folder.file("kept");
  run.steps = {{0, 1, 1, 3}, {1, 0}};
  comm::run_thread_ranks(3, [&](comm::Communicator& communicator) {
    const DecodeOutcome as_kept = run_decode(communicator, layer, run);
    DecodeRun narrow = run;
    narrow.format = kvstore::BlockFormat::kInt8;
    const DecodeOutcome converted = run_decode(communicator, layer, narrow);
    const std::int64_t width = layer.problem.heads * layer.problem.head_dim;
    double most = 0.0;
    for (const TokenId token : as_kept.tokens) {
      for (std::int64_t i = token.value() * width; i < (token.value() + 1) * width; ++i) {
        const auto at = static_cast<std::size_t>(i);
        most = std::max(most, std::fabs(static_cast<double>(as_kept.result.out[at]) - converted.result.out[at]));
      }
    }
    EXPECT_GT(most, 0.0);
    EXPECT_LT(most, 3e-2);
  });
}

// What a bad read brings is noticed before anything uses it, and named.
TEST(DecodeOnThreads, damaged_and_wrong_blocks_are_named) {
  const TestLayer layer = one_sequence(100, 20, 5);
  for (const comm::FaultKind kind :
       {comm::FaultKind::kFlipBit, comm::FaultKind::kOtherOffset, comm::FaultKind::kTruncate, comm::FaultKind::kSwap}) {
    int noticed = 0;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      DecodeRun run = run_of(layer, seed % 2 == 0 ? Exchange::kPull : Exchange::kPush, 60, 1, seed);
      run.options.costs = runtime::ExchangeCosts{1.0, 1.0};
      run.wrap = [&](comm::Communicator& communicator, comm::BlockTransport& inner) {
        comm::FaultScript script{{}, seed};
        if (communicator.rank() == 1) script.faults = {{kind, static_cast<std::int64_t>(seed % 5), 1, {}}};
        return std::make_unique<comm::FaultyTransport>(communicator, inner, script);
      };
      try {
        comm::run_thread_ranks(2, [&](comm::Communicator& communicator) { check_decode(communicator, layer, run); });
      } catch (const Error& error) {
        ++noticed;
        EXPECT_EQ(error.code(), ExitCode::kPeer);
        const std::string text = error.what();
        for (const char* word : {"rank 1: layer 0", "chunk ", "kv head ", "from rank 0", "layer 0 step "}) {
          EXPECT_NE(text.find(word), std::string::npos) << text;
        }
      }
    }
    EXPECT_GE(noticed, 8) << static_cast<int>(kind);
  }
}

}  // namespace
}  // namespace ringmark::test
