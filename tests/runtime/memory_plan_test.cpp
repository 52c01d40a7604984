#include "runtime/memory_plan.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "comm/loopback_transport.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "partition/sequence_grid.h"
#include "runtime/compressive/prefill.h"
#include "runtime/layer_shard.h"
#include "runtime/nsa/prefill.h"

namespace ringmark::runtime {
namespace {

AttentionProblem million() {
  AttentionProblem problem;
  problem.tokens = 1 << 20;
  problem.heads = 4;
  problem.kv_heads = 1;
  problem.landmark_slots = true;
  return problem;
}

// The first check, before a layout exists, says the same.
TEST(MemoryPlan, an_even_share_is_what_the_layouts_give) {
  const AttentionProblem problem = million();
  const partition::SequenceGrid grid(problem, AttentionPolicy{});
  for (const auto balance : {partition::Balance::kContiguous, partition::Balance::kZigzag}) {
    const ShardSize exact = shard_size(partition::make_layout(grid, 4, balance), RankId(2));
    EXPECT_EQ(exact.rows, even_share(grid, 4).rows);
    EXPECT_EQ(exact.chunks, even_share(grid, 4).chunks);
  }
}

// The bar: a million tokens on 4 ranks within 6 GiB in all.
TEST(MemoryPlan, a_million_tokens_fit_four_ranks) {
  const AttentionProblem problem = million();
  const AttentionPolicy policy;
  const partition::Layout layout =
      partition::make_layout(partition::SequenceGrid(problem, policy), 4, partition::Balance::kZigzag);
  std::int64_t total = 0;
  for (int rank = 0; rank < 4; ++rank) {
    total += plan_memory(problem, policy, shard_size(layout, RankId(rank)), false, Merge::kLandmarks, {}).total();
  }
  EXPECT_LT(total, std::int64_t{6} << 30);
  EXPECT_GT(total, std::int64_t{1} << 30);  // it does count the output, 1 GiB
}

TEST(MemoryPlan, over_the_limit_names_the_numbers) {
  const AttentionProblem problem = million();
  const AttentionPolicy policy;
  const partition::Layout layout =
      partition::make_layout(partition::SequenceGrid(problem, policy), 1, partition::Balance::kZigzag);
  const MemoryPlan plan = plan_memory(problem, policy, shard_size(layout, RankId(0)), false, Merge::kLandmarks, {});
  check_memory(plan, plan.total(), RankId(0));
  try {
    check_memory(plan, plan.total() - 1, RankId(0));
    FAIL() << "a plan over the limit was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("GiB"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("output"), std::string::npos);
  }
}

// What is over a budget lies in a file; the other items stay.
TEST(MemoryPlan, counts_what_spills_as_its_budget) {
  MemoryPlan plan{{{"blocks", 1000}, {"output", 10}}};
  plan.spill("blocks", std::nullopt);
  EXPECT_EQ(plan.total(), 1010);
  plan.spill("blocks", comm::SpillPolicy{5000, "."});
  EXPECT_EQ(plan.total(), 1010);
  plan.spill("blocks", comm::SpillPolicy{300, "."});
  EXPECT_EQ(plan.total(), 310);
}

// 16 KiB of K and V a chunk, 4 heads of landmarks of 65 floats: by hand.
TEST(MemoryPlan, decoding_by_hand) {
  KeptShape shape;
  shape.problem = million();
  DecodeOptions options;
  options.cache_bytes = 1 << 20;
  const MemoryPlan plan = plan_decode_memory(shape, {4, 1}, options);
  const auto bytes_of = [&](const std::string& name) {
    for (const MemoryItem& item : plan.items) {
      if (item.name == name) return item.bytes;
    }
    return std::int64_t{-1};
  };
  constexpr std::int64_t kChunks = 16384 / 4;  // of a rank
  constexpr std::int64_t kRecord = 4 * 65 * 4;
  EXPECT_EQ(bytes_of("kept blocks"), kChunks * (16384 + kRecord));
  EXPECT_EQ(bytes_of("growing chunks"), 2 * 16384);
  EXPECT_EQ(bytes_of("block cache"), 1 << 20);
  // chunks_at_most() knows one more: it begins a panel of its own.
  EXPECT_EQ(bytes_of("packed landmarks"), (kChunks + 32) * kRecord + (kChunks + 1) * 8);
}

std::int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  long kibibytes = 0;
  for (std::string line; std::getline(status, line);) {
    if (std::sscanf(line.c_str(), "VmHWM: %ld", &kibibytes) == 1) break;
  }
  return std::int64_t{kibibytes} * 1024;
}

#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Chunks of 16 tokens, so that landmarks are as large as blocks.
TEST(MemoryPlan, is_what_decoding_takes) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's own memory is many times as large";
  KeptShape shape;
  shape.problem.tokens = 512 << 10;
  shape.problem.heads = 4;
  shape.problem.kv_heads = 1;
  shape.problem.chunk_size = 16;
  shape.problem.landmark_slots = true;
  DecodeOptions options;
  options.cache_bytes = 1 << 20;
  constexpr std::int64_t kRows = 1024;
  options.tile_rows = kRows;
  const auto ranks = comm::make_single_rank();
  comm::LoopbackTransport transport(*ranks);
  const LayerShard rows(shape.problem, kRows, false);
  const std::vector<std::int64_t> sequences(kRows, 0);
  const NewTokens batch{sequences, rows.queries(), rows.queries(), rows.keys(), rows.values()};

  std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins anew
  const std::int64_t before = peak_bytes();
  KeptLayer layer(*ranks, transport, shape, options.threads);
  for (std::int64_t token = kRows; token < shape.problem.tokens; token += kRows) layer.append("fill", batch);
  Decoder decoder(*ranks, transport, layer, options);
  decoder.step(batch);
  const auto taken = static_cast<double>(peak_bytes() - before);
  const MemoryPlan plan = plan_decode_memory(shape, {1, kRows}, options);
  // The process was there before; the workspace is an upper bound for any shape.
  const auto planned = static_cast<double>(plan.total() - kProcessBytes - kWorkspaceBytes);
  RecordProperty("taken", std::to_string(taken));
  EXPECT_LT(taken, planned * 1.1) << describe(plan, 0);
  EXPECT_GT(taken, planned * 0.8) << describe(plan, 0);
  transport.retire();
}

// What an engine takes against what its plan says, on one rank.
template <class Run>
void expect_planned(const MemoryPlan& plan, Run run) {
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins anew
  const std::int64_t before = peak_bytes();
  run();
  const auto taken = static_cast<double>(peak_bytes() - before);
  // The process was there before; the workspace is an upper bound for any shape.
  const auto planned = static_cast<double>(plan.total() - kProcessBytes - kWorkspaceBytes);
  EXPECT_LT(taken, planned * 1.1) << describe(plan, 0);
  EXPECT_GT(taken, planned * 0.7) << describe(plan, 0);
}

// Many small groups, so that pooled keys weigh. Rows that are read are in the shard, which the plan counts too.
TEST(MemoryPlan, of_pooled_keys_is_what_the_engines_take) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's own memory is many times as large";
  AttentionProblem problem;
  problem.tokens = 1 << 15;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.chunk_size = 16;
  const auto ranks = comm::make_single_rank();
  SilentProgress progress;
  const PooledOptions options;
  const ShardSize size{1, problem.tokens, problem.tokens / problem.chunk_size};
  const auto layout_of = [&](const AttentionPolicy& policy) {
    return partition::make_layout(partition::SequenceGrid(problem, policy), 1, partition::Balance::kContiguous);
  };

  const NsaPolicy nsa{.window = 64, .topk = 4};
  expect_planned(nsa::plan_memory(problem, nsa, size, false, options), [&] {
    comm::LoopbackTransport transport(*ranks);
    LayerShard shard(problem, problem.tokens, false);
    const std::vector<float> gates(static_cast<std::size_t>(problem.tokens * problem.heads * 3), 1.0f);
    nsa::prefill(*ranks, transport, problem, nsa, layout_of(nsa.window_policy()), shard, gates, options, progress);
  });

  const CompressivePolicy compressive{.segment = 64, .memory = 64, .slots = 100, .rate = 2};
  expect_planned(compressive::plan_memory(problem, compressive, size, false, options), [&] {
    comm::LoopbackTransport transport(*ranks);
    LayerShard shard(problem, problem.tokens, false);
    compressive::prefill(*ranks, transport, problem, compressive, layout_of(compressive.exact_policy()), shard, options,
                         progress);
  });
}

}  // namespace
}  // namespace ringmark::runtime
