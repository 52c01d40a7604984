#include "bench/gpu/planted_device.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/cuda/buffer.h"
#include "core/cuda/stream.h"
#include "partition/layout.h"

namespace ringmark::bench {
namespace {

struct Rows {
  std::vector<std::byte> q, k, v;
};

Rows fill(const PlantedDevice& planted, const AttentionProblem& problem, std::span<const TokenId> tokens) {
  using ringmark::cuda::Buffer;
  const ringmark::cuda::Stream stream;
  const auto bytes = [&](std::int64_t heads) {
    return static_cast<std::int64_t>(tokens.size()) * heads * problem.head_dim * size_of(problem.dtype);
  };
  Buffer<std::byte> q(bytes(problem.heads)), k(bytes(problem.kv_heads)), v(bytes(problem.kv_heads));
  planted.fill(tokens, q.data(), k.data(), v.data(), stream);
  Rows rows{std::vector<std::byte>(static_cast<std::size_t>(q.size())),
            std::vector<std::byte>(static_cast<std::size_t>(k.size())),
            std::vector<std::byte>(static_cast<std::size_t>(v.size()))};
  q.download(rows.q.data(), q.size(), stream);
  k.download(rows.k.data(), k.size(), stream);
  v.download(rows.v.data(), v.size(), stream);
  stream.wait();
  return rows;
}

class PlantedOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU here";
  }
  AttentionProblem problem_{20000, 4, 2, 64, 64, DType::kBfloat16, 0.125f, true, {}};
  AttentionPolicy policy_{128, 8, 0, Scorer::kHils};
};

TEST_F(PlantedOnDevice, does_not_depend_on_who_holds_a_row) {
  const PlantedDevice planted(problem_, policy_, {});
  const partition::SequenceGrid grid(problem_, policy_);
  const auto whole_layout = partition::make_layout(grid, 1, partition::Balance::kContiguous);
  const Rows whole = fill(planted, problem_, whole_layout.tokens_of(RankId(0)));
  const auto layout = partition::make_layout(grid, 3, partition::Balance::kZigzag);
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<TokenId> tokens = layout.tokens_of(RankId(rank));
    const Rows shard = fill(planted, problem_, tokens);
    const auto same = [&](const std::vector<std::byte>& part, const std::vector<std::byte>& all, std::int64_t heads) {
      const auto row = static_cast<std::size_t>(heads * problem_.head_dim * size_of(problem_.dtype));
      for (std::size_t n = 0; n < tokens.size(); ++n) {
        if (std::memcmp(part.data() + n * row, all.data() + static_cast<std::size_t>(tokens[n].value()) * row, row) !=
            0) {
          return false;
        }
      }
      return true;
    };
    EXPECT_TRUE(same(shard.q, whole.q, problem_.heads)) << rank;
    EXPECT_TRUE(same(shard.k, whole.k, problem_.kv_heads)) << rank;
    EXPECT_TRUE(same(shard.v, whole.v, problem_.kv_heads)) << rank;
  }
}

// Agreement 1 repeats one query; agreement 0 with fresh directions repeats none.
TEST_F(PlantedOnDevice, neighbours_agree_as_often_as_asked) {
  const partition::SequenceGrid grid(problem_, policy_);
  const auto tokens = partition::make_layout(grid, 1, partition::Balance::kContiguous).tokens_of(RankId(0));
  const auto row = static_cast<std::size_t>(problem_.heads * problem_.head_dim * size_of(problem_.dtype));
  for (const auto& [agreement, low, high] : {std::tuple{0.0, 0.0, 0.001}, {0.5, 0.45, 0.55}, {0.98, 0.9, 1.0}}) {
    runtime::PlantedOptions options;
    options.agreement = agreement;
    options.topics = 0;
    const Rows rows = fill(PlantedDevice(problem_, policy_, options), problem_, tokens);
    std::int64_t equal = 0;
    for (std::size_t n = 1; n < tokens.size(); ++n) {
      equal += std::memcmp(rows.q.data() + n * row, rows.q.data() + (n - 1) * row, row) == 0;
    }
    const double share = static_cast<double>(equal) / static_cast<double>(tokens.size() - 1);
    EXPECT_GE(share, low) << agreement;
    EXPECT_LE(share, high) << agreement;
  }
}

TEST_F(PlantedOnDevice, a_needle_is_recovered_from_its_code_alone) {
  const PlantedDevice planted(problem_, policy_, {});
  ASSERT_GT(planted.needles(), 1);
  std::vector<float> out;
  for (std::int64_t head = 0; head < problem_.heads; ++head) {
    const auto code = planted.code(1);
    out.insert(out.end(), code.begin(), code.end());
  }
  EXPECT_TRUE(planted.recovered(1, out));
  EXPECT_FALSE(planted.recovered(0, out));
  std::copy(planted.code(0).begin(), planted.code(0).end(), out.begin());  // one head strays
  EXPECT_FALSE(planted.recovered(1, out));
}

}  // namespace
}  // namespace ringmark::bench
