// What is known of the tokens of kept sequences, against hashes by Python's hashlib.
#include "kvstore/prefix_chains.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "kvstore/prefix_hash.h"

namespace ringmark::kvstore {
namespace {

const std::vector<std::int64_t> some_ids = {1, 2, 3, -1, 5, 6, 7, std::int64_t{1} << 40, 4, 4, 9, 8, 7, 6};
// Of 10 tokens in chunks of 4, nothing, and 4 tokens.
const AttentionProblem some_problem{14, 1, 1, 1, 4, DType::kFloat32, 1.0f, false, {0, 10, 10, 14}};
const std::string first_hash = "edd765bc2d0ae518ac9ed9d6dd6413349760ba7d7130be4744c844d931e4b037";
const std::string second_hash = "5fca9083604bc776cdf9f7c56899936f593f1e2cc4efc92315e96a8200ae5dfe";
const std::string other_hash = "94641bca03de11ca6eae8498a9daa8ab4a5ad07ce7e8e3c8e00bb458ca11d1ed";

class PrefixChainsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_hash_prefixes()) GTEST_SKIP() << "this build has no OpenSSL";
  }
};

TEST(PrefixHash, chains_over_the_full_chunks_of_a_sequence) {
  const std::span<const std::int64_t> ids = some_ids;
  if (!can_hash_prefixes()) {
    EXPECT_THROW(prefix_hash("", ids.first(4)), Error);
    return;
  }
  EXPECT_EQ(prefix_hash("", ids.first(4)), first_hash);
  EXPECT_EQ(prefix_hash(first_hash, ids.subspan(4, 4)), second_hash);
  EXPECT_EQ(prefix_hash("", ids.subspan(10)), other_hash);
  // Another token anywhere before changes every later hash of its sequence.
  std::vector<std::int64_t> others = some_ids;
  others[0] = 2;
  const std::string changed = prefix_hash("", std::span(others).first(4));
  EXPECT_NE(changed, first_hash);
  EXPECT_NE(prefix_hash(changed, ids.subspan(4, 4)), second_hash);
}

TEST_F(PrefixChainsTest, of_whole_sequences) {
  const KnownPrefixes known = prefix_chains(some_problem, some_ids).known();
  EXPECT_EQ(known.hashes, (std::vector<std::string>{first_hash, second_hash, "", other_hash}));
  EXPECT_EQ(known.tails, (std::vector<std::vector<std::int64_t>>{{4, 4}, {}, {}}));
}

// Cut anywhere and gone on with from what a snapshot keeps, the chains are those of the whole.
TEST_F(PrefixChainsTest, go_on_from_what_was_kept) {
  const std::int64_t length = 10;
  const KnownPrefixes whole = prefix_chains(some_problem, some_ids).known();
  for (std::int64_t cut = 0; cut <= length; ++cut) {
    PrefixChains before(4, 1);
    for (std::int64_t token = 0; token < cut; ++token) before.append(0, some_ids[static_cast<std::size_t>(token)]);
    const KnownPrefixes kept = before.known();
    PrefixChains after(4, 1);
    const auto full = static_cast<std::size_t>(cut / 4);
    after.begin(0, cut, std::span(kept.hashes).first(full),
                kept.tails.empty() ? std::vector<std::int64_t>{} : kept.tails[0]);
    for (std::int64_t token = cut; token < length; ++token) after.append(0, some_ids[static_cast<std::size_t>(token)]);
    EXPECT_EQ(after.known().hashes, (std::vector<std::string>{first_hash, second_hash, ""})) << cut;
    EXPECT_EQ(after.known().tails[0], whole.tails[0]) << cut;
  }
}

// From the first token without an id on nothing has a hash, in its sequence alone.
TEST_F(PrefixChainsTest, end_where_an_id_is_missing) {
  for (std::int64_t missing = 0; missing < 10; ++missing) {
    PrefixChains chains(4, 2);
    for (std::int64_t token = 0; token < 10; ++token) {
      const std::int64_t id = some_ids[static_cast<std::size_t>(token)];
      chains.append(0, token == missing ? std::nullopt : std::optional(id));
      chains.append(1, id);
    }
    const KnownPrefixes known = chains.known();
    EXPECT_EQ(known.hashes, (std::vector<std::string>{missing < 4 ? "" : first_hash, missing < 8 ? "" : second_hash, "",
                                                      first_hash, second_hash, ""}))
        << missing;
    EXPECT_EQ(known.tails, (std::vector<std::vector<std::int64_t>>{{}, {4, 4}})) << missing;
  }
}

// A snapshot without ids of growing chunks, or without any: what closes later has no hash, what is there stays.
TEST_F(PrefixChainsTest, keep_what_they_began_with) {
  PrefixChains chains(4, 3);
  chains.begin(0, 6, std::vector<std::string>{first_hash}, {});
  chains.begin(1, 4, std::vector<std::string>{first_hash}, {});
  chains.begin(2, 5, {}, {});
  for (const std::int64_t id : {5, 6, 7, 8, 9}) {
    for (std::int64_t sequence = 0; sequence < 3; ++sequence) chains.append(sequence, id);
  }
  const std::string next = prefix_hash(first_hash, std::vector<std::int64_t>{5, 6, 7, 8});
  EXPECT_EQ(chains.known().hashes, (std::vector<std::string>{first_hash, "", "", first_hash, next, "", "", "", ""}));
  EXPECT_EQ(chains.known().tails, (std::vector<std::vector<std::int64_t>>{{}, {9}, {}}));
}

TEST(PrefixChains, know_nothing_without_ids) {
  PrefixChains chains(4, 2);
  for (int token = 0; token < 6; ++token) chains.append(1, std::nullopt);
  EXPECT_TRUE(chains.known().hashes.empty());
  EXPECT_TRUE(chains.known().tails.empty());
}

}  // namespace
}  // namespace ringmark::kvstore
