// Reuse of kept prefixes: what is found, what is refused, and that the rest is that of one prefill of the whole.
#include "runtime/prefix_reuse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "comm/thread_ranks.h"
#include "core/error.h"
#include "kvstore/prefix_hash.h"
#include "runtime/prefill.h"
#include "runtime/prefill_snapshot.h"
#include "tests/kvstore/temporary_folder.h"
#include "tests/runtime/decode_checks.h"
#include "tests/support/test_layer.h"

namespace ringmark::test {
namespace {

using Ids = std::vector<std::int64_t>;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

AttentionProblem problem_of(const std::vector<Ids>& documents, std::int64_t chunk_size) {
  AttentionProblem problem;
  problem.cu_seqlens = {0};
  for (const Ids& ids : documents) {
    problem.cu_seqlens.push_back(problem.cu_seqlens.back() + static_cast<std::int64_t>(ids.size()));
  }
  problem.tokens = problem.cu_seqlens.back();
  problem.chunk_size = chunk_size;
  return problem;
}

Ids joined(const std::vector<Ids>& documents) {
  Ids all;
  for (const Ids& ids : documents) all.insert(all.end(), ids.begin(), ids.end());
  return all;
}

class PrefixReuse : public testing::Test {
 protected:
  void SetUp() override {
    if (!kvstore::can_hash_prefixes()) GTEST_SKIP() << "this build has no OpenSSL";
  }
};

// In chunks of 4: what "1 to 10", the same first chunk with others behind it, and nothing let documents begin with.
struct HandWorked {
  const char* what;
  Ids document;
  std::int64_t sequence;
  std::int64_t tokens;
};

std::vector<runtime::KeptStart> starts_of(const std::vector<Ids>& kept, const std::vector<Ids>& documents) {
  kvstore::SnapshotManifest manifest;
  manifest.problem = problem_of(kept, 4);
  manifest.prefixes = kvstore::prefix_chains(manifest.problem, joined(kept)).known();
  const AttentionProblem problem = problem_of(documents, 4);
  return runtime::match_prefixes(problem, kvstore::prefix_chains(problem, joined(documents)), manifest);
}

const std::vector<Ids> kept_sequences = {
    {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {}, {1, 2, 3, 4, 9, 9, 9, 9, 7, 7, 7, 7}, {8, 8, 8}};

TEST_F(PrefixReuse, hand_worked_beginnings) {
  const std::vector<HandWorked> cases = {
      {"another first token", {2, 2, 3, 4, 5, 6, 7, 8, 9}, 0, 0},
      {"another token at the end of chunk 0", {1, 2, 3, 5, 5, 6, 7, 8, 9}, 0, 0},
      {"another token in the middle of chunk 1", {1, 2, 3, 4, 5, 0, 7, 8, 9}, 0, 4},
      {"another token behind chunk 1", {1, 2, 3, 4, 5, 6, 7, 8, 0, 10, 11}, 0, 8},
      {"equal to the whole", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0, 8},
      {"longer than what is kept", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, 0, 8},
      {"shorter, ending in a chunk", {1, 2, 3, 4, 5}, 0, 4},
      {"shorter, ending with a chunk: its last row is computed", {1, 2, 3, 4, 5, 6, 7, 8}, 0, 4},
      {"one chunk", {1, 2, 3, 4}, 0, 0},
      {"less than a chunk", {1, 2, 3}, 0, 0},
      {"one token", {8}, 0, 0},
      {"the other sequence, all of it", {1, 2, 3, 4, 9, 9, 9, 9, 7, 7, 7, 7, 1}, 2, 12},
      {"the second chunk of the other sequence alone", {9, 9, 9, 9, 7, 7, 7, 7, 1}, 0, 0},
      {"a growing chunk", {8, 8, 8, 8, 8}, 0, 0},
      {"nothing", {}, 0, 0},
  };
  for (const HandWorked& worked : cases) {
    if (worked.document.empty()) continue;
    const auto starts = starts_of(kept_sequences, {worked.document});
    ASSERT_EQ(starts.size(), 1u);
    EXPECT_EQ(starts[0].tokens, worked.tokens) << worked.what;
    EXPECT_EQ(starts[0].sequence, worked.sequence) << worked.what;
  }
  // All of them packed: each finds what it found alone.
  std::vector<Ids> documents;
  for (const HandWorked& worked : cases) documents.push_back(worked.document);
  const auto starts = starts_of(kept_sequences, documents);
  ASSERT_EQ(starts.size(), cases.size());
  for (std::size_t d = 0; d < cases.size(); ++d) EXPECT_EQ(starts[d].tokens, cases[d].tokens) << cases[d].what;
}

// Where ids of a kept sequence are known only up to somewhere, only that far can be reused.
TEST_F(PrefixReuse, ends_with_the_known_ids) {
  kvstore::SnapshotManifest manifest;
  manifest.problem = problem_of({{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}, 4);
  kvstore::PrefixChains chains(4, 1);
  for (std::int64_t id = 1; id <= 12; ++id) chains.append(0, id == 6 ? std::nullopt : std::optional(id));
  manifest.prefixes = chains.known();
  const AttentionProblem problem = problem_of({{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}}, 4);
  Ids ids(13);
  for (std::size_t n = 0; n < ids.size(); ++n) ids[n] = static_cast<std::int64_t>(n + 1);
  EXPECT_EQ(runtime::match_prefixes(problem, kvstore::prefix_chains(problem, ids), manifest)[0].tokens, 4);
}

TEST_F(PrefixReuse, a_snapshot_of_another_layer_is_refused_by_name) {
  kvstore::SnapshotManifest kept;
  kept.problem = problem_of({{1, 2, 3, 4}}, 4);
  kept.prefixes = kvstore::prefix_chains(kept.problem, Ids{1, 2, 3, 4}).known();
  const auto refusal = [&](auto change) -> std::string {
    AttentionProblem problem = kept.problem;
    AttentionPolicy policy = kept.policy;
    kvstore::SnapshotManifest manifest = kept;
    std::int64_t layer = 0;
    change(problem, policy, layer, manifest);
    try {
      runtime::expect_reusable("kept", manifest, {problem, policy, layer});
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      return error.what();
    }
  };
  const auto expect = [&](const std::string& part, auto change) {
    EXPECT_NE(refusal(change).find(part), std::string::npos) << part << " is not in: " << refusal(change);
  };
  EXPECT_EQ(refusal([](auto&...) {}), "");
  EXPECT_EQ(refusal([](auto& problem, auto&...) { problem.tokens = 99; }), "");
  EXPECT_EQ(refusal([](auto& problem, auto&...) { problem.heads = 8; }),
            "kept: cannot be reused: its heads is 1, that of the input is 8");
  expect("its kv_heads is 1", [](auto& problem, auto&...) { problem.kv_heads = 2; });
  expect("its head_dim is 64", [](auto& problem, auto&...) { problem.head_dim = 32; });
  expect("its dtype is bf16, that of the input is fp32",
         [](auto& problem, auto&...) { problem.dtype = DType::kFloat32; });
  expect("its chunk_size is 4", [](auto& problem, auto&...) { problem.chunk_size = 8; });
  expect("its landmark_slots is false", [](auto& problem, auto&...) { problem.landmark_slots = true; });
  expect("its scale is 0.125", [](auto& problem, auto&...) { problem.scale = 0.25f; });
  expect("its scorer is hils, that of the input is mean",
         [](auto&, auto& policy, auto&...) { policy.scorer = Scorer::kMean; });
  expect("its choice is group, that of the input is head",
         [](auto&, auto& policy, auto&...) { policy.choice = Choice::kHead; });
  expect("its fusion is hierarchical, that of the input is union",
         [](auto&, auto& policy, auto&...) { policy.fusion = Fusion::kUnion; });
  expect("its window is 128", [](auto&, auto& policy, auto&...) { policy.window = 64; });
  expect("its topk is 16", [](auto&, auto& policy, auto&...) { policy.topk = 8; });
  expect("its sinks is 0", [](auto&, auto& policy, auto&...) { policy.sinks = 4; });
  expect("its layer is 0, that of the input is 3", [](auto&, auto&, auto& layer, auto&) { layer = 3; });
  expect("it has no prefix hashes", [](auto&, auto&, auto&, auto& manifest) { manifest.prefixes = {}; });
}

// A layer that was computed and kept, and another one of which some documents begin alike: with the same ids and rows.
struct TwoLayers {
  explicit TwoLayers(std::uint64_t seed, const AttentionPolicy& policy) {
    AttentionProblem problem;
    problem.heads = 4;
    problem.kv_heads = 2;
    problem.head_dim = 24;
    problem.chunk_size = seed % 2 == 0 ? kChunk : kChunk - 1;  // 15: blocks are padded where they are kept
    problem.scale = 0.2f;
    problem.landmark_slots = seed % 2 == 0;
    const auto layer_of = [&](const std::vector<std::int64_t>& lengths, std::uint64_t of_seed) {
      AttentionProblem packed = problem;
      packed.cu_seqlens = {0};
      for (const std::int64_t length : lengths) packed.cu_seqlens.push_back(packed.cu_seqlens.back() + length);
      packed.tokens = packed.cu_seqlens.back();
      return random_layer(packed, policy, of_seed);
    };
    first = layer_of({150, 70, 1}, seed);
    // Nothing in common; 5 chunks and a half; nothing; all of the second and more; the same once more.
    second = layer_of({40, 130, 0, 90, 90}, seed + 2);
    first_ids = ids_of(first, 1000);
    second_ids = ids_of(second, 5000);
    share(0, 40, 5 * problem.chunk_size + 7);
    share(150, 170, 70);
    share(150, 260, 70);
  }

  static Ids ids_of(const TestLayer& layer, std::int64_t from) {
    Ids ids(size(layer.problem.tokens));
    for (std::size_t n = 0; n < ids.size(); ++n) ids[n] = from + static_cast<std::int64_t>(n);
    return ids;
  }
  // Tokens [from, from + count) of the first are [to, to + count) of the second.
  void share(std::int64_t from, std::int64_t to, std::int64_t count) {
    const auto copy = [&](const std::vector<std::byte>& source, std::vector<std::byte>& target) {
      const auto row = source.size() / size(first.problem.tokens);
      std::memcpy(target.data() + size(to) * row, source.data() + size(from) * row, size(count) * row);
    };
    copy(first.q, second.q);
    copy(first.k, second.k);
    copy(first.v, second.v);
    if (!first.retrieval_q.empty()) copy(first.retrieval_q, second.retrieval_q);
    std::copy_n(first_ids.begin() + from, count, second_ids.begin() + to);
  }

  TestLayer first, second;
  Ids first_ids, second_ids;
};

// The rows of these tokens, out of a tensor of the whole sequence.
template <class T>
std::vector<T> rows_of_tokens(const std::vector<T>& all, std::int64_t all_tokens, const std::vector<TokenId>& tokens) {
  const auto width = static_cast<std::int64_t>(all.size()) / all_tokens;
  std::vector<T> rows;
  for (const TokenId token : tokens) {
    const auto begin = all.begin() + token.value() * width;
    rows.insert(rows.end(), begin, begin + width);
  }
  return rows;
}

// One prefill of the whole at `ranks` ranks, kept.
void keep(const TestLayer& layer, const Ids& ids, const std::filesystem::path& folder, kvstore::BlockFormat format,
          int ranks) {
  comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
    runtime::PrefillOptions options;
    options.keep = [&](const runtime::PrefillState& state) {
      const auto prefixes = kvstore::prefix_chains(layer.problem, ids).known();
      runtime::write_prefill_snapshot(communicator, {folder, format, prefixes}, layer.problem, layer.policy, state);
    };
    run_prefill(communicator, comm::TransportChoice::kAuto, layer, partition::Balance::kZigzag, options);
  });
}

runtime::LayerShard rows_of(const TestLayer& layer, std::span<const RowRange> runs) {
  std::vector<TokenId> tokens;
  for (const RowRange& run : runs) {
    for (std::int64_t token = run.begin; token < run.end; ++token) tokens.emplace_back(token);
  }
  TokenRows taken = take_rows(layer, tokens);
  runtime::LayerShard shard(layer.problem, static_cast<std::int64_t>(tokens.size()), !layer.retrieval_q.empty());
  shard.q() = taken.q;
  shard.retrieval_q() = taken.retrieval_q;
  shard.k() = taken.k;
  shard.v() = taken.v;
  return shard;
}

// Reuses `folder` for the second layer and compares with one prefill of it, bit for bit. `save`: where to keep the
// state, in `format`; empty: nowhere.
void check_reuse(comm::Communicator& communicator, const TwoLayers& layers, const std::string& folder,
                 const std::string& save, kvstore::BlockFormat format, partition::Balance balance) {
  const TestLayer& layer = layers.second;
  const AttentionProblem& problem = layer.problem;
  const kvstore::Snapshot snapshot = kvstore::Snapshot::open(communicator, folder);
  const auto prefixes = kvstore::prefix_chains(problem, layers.second_ids);
  const auto starts = runtime::match_prefixes(problem, prefixes, snapshot.manifest());
  const std::vector<std::int64_t> chunks = {0, 5, 0, 4, 4};
  ASSERT_EQ(starts.size(), chunks.size());
  for (std::size_t d = 0; d < chunks.size(); ++d) {
    EXPECT_EQ(starts[d].tokens, chunks[d] * problem.chunk_size) << "document " << d;
  }
  const RankId rank(communicator.rank());
  const auto load_rows = [&](std::span<const RowRange> runs) { return rows_of(layer, runs); };
  runtime::check_reused_rows("kept", snapshot, problem, starts, rank, communicator.size(), load_rows);

  const partition::SequenceGrid grid(problem, layer.policy);
  const runtime::ReusedChunks reused(snapshot, problem, starts);
  const auto layout = partition::leave_out(partition::make_layout(grid, communicator.size(), balance), reused.chunks());
  runtime::PrefillOptions options;
  options.load = [&](ChunkId chunk, std::span<std::byte> blocks, std::span<float> record) {
    reused.load(chunk, blocks, record);
  };
  if (!save.empty()) {
    options.keep = [&](const runtime::PrefillState& state) {
      runtime::write_prefill_snapshot(communicator, {save, format, prefixes.known()}, problem, layer.policy, state);
    };
  }
  for (const runtime::Merge merge : {runtime::Merge::kLandmarks, runtime::Merge::kScores}) {
    options.merge = merge;
    runtime::LayerShard rows = layer.shard(layout, rank);
    const runtime::PrefillResult rest = engine_under_test().prefill(communicator, comm::TransportChoice::kAuto, problem,
                                                                    layer.policy, layout, rows, options);
    options.keep = {};
    const GatheredResult whole =
        run_prefill(communicator, comm::TransportChoice::kAuto, layer, partition::Balance::kZigzag, {});
    const std::string what = describe(layer) + " ranks=" + std::to_string(communicator.size());
    const std::vector<TokenId> tokens = layout.tokens_of(rank);
    EXPECT_EQ(rest.out, rows_of_tokens(whole.out, problem.tokens, tokens)) << what;
    EXPECT_EQ(rest.lse, rows_of_tokens(whole.lse, problem.tokens, tokens)) << what;
    EXPECT_EQ(rest.selection.chunks, rows_of_tokens(whole.chunks, problem.tokens, tokens)) << what;
    std::array<std::int64_t, 1> rows_of_all = {static_cast<std::int64_t>(tokens.size())};
    communicator.all_reduce_sum("count rows", rows_of_all);
    EXPECT_EQ(rows_of_all[0], 350 - 13 * problem.chunk_size) << what;
  }
}

// Every chunk of two snapshots, and what is known of their prefixes.
void expect_equal(const kvstore::Snapshot& got, const kvstore::Snapshot& want) {
  EXPECT_EQ(got.manifest().prefixes.hashes, want.manifest().prefixes.hashes);
  EXPECT_EQ(got.manifest().prefixes.tails, want.manifest().prefixes.tails);
  EXPECT_EQ(got.manifest().problem.cu_seqlens, want.manifest().problem.cu_seqlens);
  const AttentionProblem& problem = want.manifest().problem;
  const partition::SequenceGrid grid(problem, want.manifest().policy);
  const kvstore::BlockCodec codec(want.manifest().format, kernels::BlockShape::of(problem));
  const auto floats = kernels::LandmarkShape::of(problem, want.manifest().policy.scorer).record_floats();
  for (ChunkId chunk(0); chunk < ChunkId(grid.chunk_count()); ++chunk) {
    const bool closed = grid.tokens_of(chunk).size() == problem.chunk_size;
    const std::int64_t block = closed ? codec.encoded_bytes() : kernels::BlockShape::of(problem).bytes();
    std::vector<std::byte> a(size(problem.kv_heads * block)), b(a.size());
    std::vector<float> x(want.has_landmark(chunk) ? size(floats) : 0), y(x.size());
    got.read(chunk, a, x);
    want.read(chunk, b, y);
    EXPECT_EQ(a, b) << "chunk " << chunk;
    EXPECT_EQ(x, y) << "chunk " << chunk;
  }
}

TEST_F(PrefixReuse, equals_one_prefill_on_any_ranks) {
  std::uint64_t seed = 10;
  for (const AttentionPolicy& policy :
       {AttentionPolicy{24, 3, 0, Scorer::kHils}, AttentionPolicy{24, 3, 20, Scorer::kHils},
        AttentionPolicy{0, 2, 0, Scorer::kMean}, AttentionPolicy{40, 3, 0, Scorer::kNone}}) {
    const TwoLayers layers(++seed, policy);
    const TemporaryFolder folder;
    keep(layers.first, layers.first_ids, folder.file("kept"), kvstore::BlockFormat::kAsInput, 4);
    for (const int ranks : {1, 2, 4, 5}) {
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
        for (const auto balance : {partition::Balance::kRotate, partition::Balance::kZigzag}) {
          check_reuse(communicator, layers, folder.file("kept"), {}, {}, balance);
        }
      });
    }
  }
}

// The state behind a reuse is that behind one prefill, byte for byte, in every format.
TEST_F(PrefixReuse, leaves_the_snapshot_of_one_prefill) {
  for (const std::uint64_t seed : {20, 21}) {
    const TwoLayers layers(seed, {24, 3, 0, Scorer::kHils});
    const TemporaryFolder folder;
    keep(layers.first, layers.first_ids, folder.file("kept"), kvstore::BlockFormat::kAsInput, 4);
    for (const auto format : {kvstore::BlockFormat::kAsInput, kvstore::BlockFormat::kInt8}) {
      comm::run_thread_ranks(3, [&](comm::Communicator& communicator) {
        check_reuse(communicator, layers, folder.file("kept"), folder.file("saved"), format,
                    partition::Balance::kRotate);
      });
      keep(layers.second, layers.second_ids, folder.file("whole"), format, 2);
      expect_equal(kvstore::Snapshot::open(folder.file("saved")), kvstore::Snapshot::open(folder.file("whole")));
    }
  }
}

// Token ids that are right do not make rows right.
TEST_F(PrefixReuse, rows_of_another_model_are_refused) {
  const TemporaryFolder folder;
  for (const bool values : {false, true}) {
    TwoLayers layers(30, {24, 3, 0, Scorer::kHils});
    keep(layers.first, layers.first_ids, folder.file("kept"), kvstore::BlockFormat::kAsInput, 2);
    // One bit of the last row that is looked at: token 4 of chunk 4, of document 1, which begins at 40.
    std::vector<std::byte>& tensor = values ? layers.second.v : layers.second.k;
    const std::size_t row = tensor.size() / size(layers.second.problem.tokens);
    tensor[(40 + 4 * kChunk + 4) * row + row - 1] ^= std::byte{1};
    const auto error_on = [&](int ranks) -> std::string {
      std::string text;
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
        const auto snapshot = kvstore::Snapshot::open(folder.file("kept"));
        const auto starts = runtime::match_prefixes(layers.second.problem,
                                                    kvstore::prefix_chains(layers.second.problem, layers.second_ids),
                                                    snapshot.manifest());
        try {
          runtime::check_reused_rows("kept", snapshot, layers.second.problem, starts, RankId(communicator.rank()),
                                     communicator.size(),
                                     [&](std::span<const RowRange> runs) { return rows_of(layers.second, runs); });
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::kBadInput);
          text = error.what();  // of the one rank that looks at document 1
        }
      });
      return text;
    };
    for (const int ranks : {1, 3}) {
      EXPECT_EQ(
          error_on(ranks),
          "kept: cannot be reused: K and V of its chunk 4 are not those of tokens 104 to 119 of the input, though "
          "the token ids are: it is of another model, or was once kept in fewer bits");
    }
  }
}

// What is kept in fewer bits is not that of the input anyway.
TEST_F(PrefixReuse, rows_are_not_compared_with_quantised_ones) {
  const TwoLayers layers(40, {24, 3, 0, Scorer::kHils});
  const TemporaryFolder folder;
  keep(layers.first, layers.first_ids, folder.file("kept"), kvstore::BlockFormat::kInt8, 2);
  const kvstore::Snapshot snapshot = kvstore::Snapshot::open(folder.file("kept"));
  const auto starts = runtime::match_prefixes(
      layers.second.problem, kvstore::prefix_chains(layers.second.problem, layers.second_ids), snapshot.manifest());
  EXPECT_EQ(starts[1].tokens, 5 * kChunk);
  runtime::check_reused_rows(
      "kept", snapshot, layers.second.problem, starts, RankId(0), 1,
      [](std::span<const RowRange>) -> runtime::LayerShard { throw std::logic_error("looked"); });
}

}  // namespace
}  // namespace ringmark::test
