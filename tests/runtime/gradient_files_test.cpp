// Files of gradients, and what a backward pass is planned to hold.
#include "runtime/gradient_files.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "comm/thread_ranks.h"
#include "core/error.h"
#include "kvstore/safetensors_file.h"
#include "kvstore/safetensors_writer.h"
#include "partition/sequence_grid.h"
#include "runtime/backward_memory.h"
#include "tests/kvstore/temporary_folder.h"

namespace ringmark::runtime {
namespace {

using test::TemporaryFolder;

AttentionProblem small() {
  AttentionProblem problem;
  problem.tokens = 10;
  problem.heads = 2;
  problem.head_dim = 3;
  problem.chunk_size = 4;
  return problem;
}

partition::Layout layout_of(const AttentionProblem& problem, int ranks) {
  return partition::make_layout(partition::SequenceGrid(problem, {}), ranks, partition::Balance::kZigzag);
}

// Component n of the file is n.
std::string write_gradient(const TemporaryFolder& folder, const std::string& name, const std::string& dtype,
                           std::int64_t tokens, std::int64_t broken_token = -1) {
  std::vector<float> values(static_cast<std::size_t>(tokens * 6));
  for (std::size_t n = 0; n < values.size(); ++n) values[n] = static_cast<float>(n);
  if (broken_token >= 0) {
    values[static_cast<std::size_t>(broken_token * 6 + 5)] = std::numeric_limits<float>::infinity();
  }
  std::vector<std::byte> bytes(values.size() * (dtype == "F32" ? 4 : 2));
  if (dtype == "F32") std::memcpy(bytes.data(), values.data(), bytes.size());
  if (dtype == "BF16") narrow(values.data(), DType::kBfloat16, std::ssize(values), bytes.data());
  std::string path = folder.file("do.safetensors");
  auto writer = kvstore::SafetensorsWriter::create(path, {{name, dtype, {tokens, 2, 3}}}, {});
  writer.write_rows(name, {0, tokens}, bytes);
  writer.flush();
  writer.commit();
  return path;
}

std::string refusal(const std::string& path) {
  const AttentionProblem problem = small();
  try {
    for (int rank = 0; rank < 2; ++rank) GradientFile(path, problem).load(layout_of(problem, 2), RankId(rank));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return error.what();
  }
  return "accepted";
}

TEST(GradientFile, ranks_read_their_rows) {
  const AttentionProblem problem = small();
  for (const std::string dtype : {"F32", "BF16"}) {  // numbers below 60 are exact in both
    const TemporaryFolder folder;
    const GradientFile file(write_gradient(folder, "do", dtype, 10), problem);
    const partition::Layout layout = layout_of(problem, 2);
    std::int64_t rows = 0;
    for (int rank = 0; rank < 2; ++rank) {
      const std::vector<TokenId> tokens = layout.tokens_of(RankId(rank));
      const std::vector<float> gradient = file.load(layout, RankId(rank));
      ASSERT_EQ(gradient.size(), tokens.size() * 6);
      for (std::size_t n = 0; n < gradient.size(); ++n) {
        EXPECT_EQ(gradient[n], static_cast<float>(tokens[n / 6].value() * 6) + static_cast<float>(n % 6));
      }
      rows += std::ssize(tokens);
    }
    EXPECT_EQ(rows, 10);
  }
}

TEST(GradientFile, what_does_not_fit_is_refused) {
  const TemporaryFolder folder;
  const auto ends = [](const std::string& text, const std::string& end) { return text.ends_with(end) ? end : text; };
  EXPECT_EQ(refusal(write_gradient(folder, "do", "F32", 10)), "accepted");
  const std::string shape = "tensor do has shape [9, 2, 3], not [10, 2, 3]";
  EXPECT_EQ(ends(refusal(write_gradient(folder, "do", "F32", 9)), shape), shape);
  const std::string dtype = "tensor do has dtype I16, not BF16, F16 or F32";
  EXPECT_EQ(ends(refusal(write_gradient(folder, "do", "I16", 10)), dtype), dtype);
  const std::string infinite = "tensor do holds NaN or infinity at token 7";
  EXPECT_EQ(ends(refusal(write_gradient(folder, "do", "F32", 10, 7)), infinite), infinite);
  EXPECT_NE(refusal(write_gradient(folder, "o", "F32", 10)).find("do"), std::string::npos);
  EXPECT_NE(refusal(folder.file("absent.safetensors")).find("absent.safetensors"), std::string::npos);
}

TEST(GradientOutput, rows_stand_in_token_order) {
  const AttentionProblem problem = small();
  const AttentionPolicy policy;
  const TemporaryFolder folder;
  const GradientOutput output{folder.file("gradients.safetensors"), true};
  comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
    const partition::Layout layout = layout_of(problem, 2);
    BackwardResult result;
    for (const TokenId token : layout.tokens_of(RankId(communicator.rank()))) {
      const auto value = static_cast<float>(token.value());
      result.query_gradient.insert(result.query_gradient.end(), 6, value);
      result.retrieval_gradient.insert(result.retrieval_gradient.end(), 6, 100.0f + value);
      result.key_gradient.insert(result.key_gradient.end(), 3, 200.0f + value);
      result.value_gradient.insert(result.value_gradient.end(), 3, 300.0f + value);
    }
    write_gradients(communicator, output, problem, policy, layout, result);
  });
  const kvstore::SafetensorsFile file(output.path);
  const auto expect = [&](const std::string& name, std::int64_t width, float first) {
    std::vector<float> values(static_cast<std::size_t>(10 * width));
    file.read_rows(file.tensor(name), {0, 10}, std::as_writable_bytes(std::span(values)));
    for (std::size_t n = 0; n < values.size(); ++n) {
      const std::int64_t row = static_cast<std::int64_t>(n) / width;
      EXPECT_EQ(values[n], first + static_cast<float>(row)) << name;
    }
  };
  expect("dq", 6, 0.0f);
  expect("dlandmark_q", 6, 100.0f);
  expect("dk", 3, 200.0f);
  expect("dv", 3, 300.0f);
  EXPECT_EQ(file.header().metadata.at("scorer"), "hils");
}

AttentionProblem million() {
  AttentionProblem problem;
  problem.tokens = 1 << 20;
  problem.heads = 8;
  problem.kv_heads = 2;
  return problem;
}

// Gradients of a million tokens' queries and keys are 3 GiB in fp32; those on their way stay within their budget.
TEST(BackwardMemory, counts_gradients_and_keeps_those_on_their_way_within_the_budget) {
  const AttentionProblem problem = million();
  const AttentionPolicy policy;
  const ShardSize shard = even_share(partition::SequenceGrid(problem, policy), 4);
  BackwardOptions options;
  const auto item = [&](const MemoryPlan& plan, const std::string& name) {
    for (const MemoryItem& of : plan.items) {
      if (of.name == name) return of.bytes;
    }
    return std::int64_t{-1};
  };
  const MemoryPlan plan = plan_backward_memory(problem, policy, shard, false, options);
  EXPECT_EQ(item(plan, "gradients"), (std::int64_t{1} << 18) * (8 + 2 * 2) * 64 * 4);
  EXPECT_LE(item(plan, "gradients on their way"), options.gradient_budget);
  EXPECT_GT(item(plan, "gradients on their way"), options.gradient_budget / 2);
  options.gradient_budget = 1;  // a chunk at a time still
  EXPECT_EQ(item(plan_backward_memory(problem, policy, shard, false, options), "gradients on their way"),
            5 * gradient_bytes(problem, policy));
  // Two query gradients where the model has retrieval queries.
  EXPECT_EQ(item(plan_backward_memory(problem, policy, shard, true, options), "gradients"),
            (std::int64_t{1} << 18) * (2 * 8 + 2 * 2) * 64 * 4);
}

// K and V of a chunk in fp32, and a landmark of every head.
TEST(BackwardMemory, a_record_holds_keys_values_and_landmarks) {
  EXPECT_EQ(gradient_bytes(million(), {}), (2 * 2 * 64 * 64 + 8 * 64 + 8) * 4);
  EXPECT_EQ(gradient_bytes(million(), {0, 0, 0, Scorer::kNone}), 2 * 2 * 64 * 64 * 4);
  EXPECT_EQ(stretch_chunks(million(), {}, 3, std::int64_t{1} << 20), (1 << 20) / (4 * gradient_bytes(million(), {})));
}

}  // namespace
}  // namespace ringmark::runtime
