// A prefill that is told to stop, at every tile, and the runs that go on from what it left.
#include "runtime/prefill_checkpoint.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "comm/thread_ranks.h"
#include "tests/kvstore/temporary_folder.h"
#include "tests/runtime/prefill_checks.h"

namespace ringmark::test {
namespace {

using runtime::PrefillCheckpoint;
using runtime::PrefillResult;
using runtime::RowsDone;

TestLayer layer_of(std::int64_t tokens, const AttentionPolicy& policy, std::vector<std::int64_t> cu_seqlens = {}) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = 32;
  problem.chunk_size = 16;
  problem.cu_seqlens = std::move(cu_seqlens);
  problem.validate();
  policy.validate(problem);
  return random_layer(problem, policy, 5);
}

// When a rank is told to stop: after so many looks at `stop`, never for -1. A look may take its time.
struct Told {
  int after = -1;
  std::chrono::milliseconds pause{0};
};

// One rank's part of the runs of one command.
class Command {
 public:
  Command(comm::Communicator& communicator, const TestLayer& layer, const Route& route, std::string path)
      : communicator_(communicator),
        layer_(layer),
        layout_(partition::make_layout({layer.problem, layer.policy}, communicator.size(), route.balance)),
        rank_(communicator.rank()),
        path_(std::move(path)),
        balance_(partition::name_of(route.balance)) {
    options.merge = route.merge;
    options.tile_rows = 20;
  }

  PrefillResult run(const Told& told = {}) {
    runtime::LayerShard shard = layer_.shard(layout_, rank_);
    const PrefillCheckpoint checkpoint = checkpoint_of(shard);
    PrefillCheckpoint::Found found = checkpoint.find(communicator_);
    EXPECT_EQ(found.refusal, "");
    options.stop = [told, seen = std::make_shared<int>(0)] {
      std::this_thread::sleep_for(told.pause);
      return told.after >= 0 && ++*seen > told.after;
    };
    const auto chosen = comm::choose_transport(communicator_, comm::TransportChoice::kAuto);
    runtime::SilentProgress progress;
    PrefillResult result = runtime::prefill(communicator_, *chosen.transport, layer_.problem, layer_.policy, layout_,
                                            shard, options, progress, std::move(found.begun));
    if (result.stopped) checkpoint.write(communicator_, result);
    if (!result.stopped) checkpoint.remove(communicator_);
    return result;
  }

  PrefillCheckpoint::Found find() const { return checkpoint_of(layer_.shard(layout_, rank_)).find(communicator_); }
  std::int64_t rows() const { return layout_.token_count(rank_); }

  runtime::PrefillOptions options;

 private:
  PrefillCheckpoint checkpoint_of(const runtime::LayerShard& shard) const {
    return {path_, layer_.problem, layer_.policy, layout_, rank_, shard, {{"balance", balance_}}};
  }

  comm::Communicator& communicator_;
  const TestLayer& layer_;
  partition::Layout layout_;
  RankId rank_;
  std::string path_;
  std::string balance_;
};

void expect_rows_done(const RowsDone& got, const RowsDone& want) {
  EXPECT_EQ(got.windowed, want.windowed);
  EXPECT_EQ(got.selected, want.selected);
  EXPECT_EQ(got.attended, want.attended);
}

// Every run does a tile or two; `asks` says which ranks are told to stop. Returns the number of runs.
template <class Asks>
int check_runs(comm::Communicator& communicator, const TestLayer& layer, const Route& route, const std::string& path,
               Asks&& asks) {
  const PrefillResult want = Command(communicator, layer, route, path).run();
  EXPECT_FALSE(want.stopped);
  for (int runs = 1; runs < 200; ++runs) {
    Command command(communicator, layer, route, path);
    command.options.fetch_budget = needed_budget(layer);  // many waves
    command.options.tile_rows = 12;                       // of one chunk, or of two
    // Two looks: one where the ranks meet after the window, one before a tile.
    const PrefillResult got = command.run({asks(communicator.rank()) ? 2 : -1});
    communicator.barrier("the file is there or gone");
    EXPECT_EQ(std::filesystem::exists(path), got.stopped);
    communicator.barrier("all have looked");
    if (got.stopped) continue;
    const std::string what = describe(layer) + describe(route) + " ranks " + std::to_string(communicator.size()) +
                             " after " + std::to_string(runs) + " runs";
    EXPECT_EQ(got.out, want.out) << what;
    EXPECT_EQ(got.lse, want.lse) << what;
    EXPECT_EQ(got.selection.chunks, want.selection.chunks) << what;
    expect_rows_done(got.done, want.done);
    return runs;
  }
  ADD_FAILURE() << "no end of runs";
  return 0;
}

class PrefillCheckpoints : public testing::Test {
 protected:
  TemporaryFolder folder_;
  std::string path_ = folder_.file("out.partial");
};

// Of what is applied once, at the end of the layer: a run that goes on must not apply it again.
TestLayer with_sink_logits(TestLayer layer) {
  layer.problem.sink_logits = {0.0f, 2.0f, -1.0f, 5.0f};
  return layer;
}

TEST_F(PrefillCheckpoints, stops_at_every_tile_change_no_bit) {
  const std::vector<TestLayer> layers = {
      with_sink_logits(layer_of(90, {16, 2, 0, Scorer::kMean})),
      with_sink_logits(layer_of(70, {.window = 21, .topk = 0, .sinks = 2, .edge = WindowEdge::kToken}, {0, 30, 70})),
      layer_of(211, {32, 4, 3, Scorer::kHils}, {0, 70, 70, 211}),
      layer_of(100, {16, 2, 0, Scorer::kNone}),
      layer_of(40, {0, 1, 0, Scorer::kMean}),
      layer_of(120, {16, 1000, 0, Scorer::kHils}),  // neighbours choose the same
      layer_of(90, {0, 2, 0, Scorer::kMean, Choice::kHead, Fusion::kUnion}),
  };
  for (const TestLayer& layer : layers) {
    for (const int ranks : {1, 2, 4, 5}) {
      for (const Route& route : routes(comm::TransportChoice::kAuto)) {
        comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
          const int all = check_runs(communicator, layer, route, path_, [](int) { return true; });
          const int one = check_runs(communicator, layer, route, path_, [&](int rank) { return rank == ranks / 2; });
          EXPECT_GE(all, one);
        });
      }
    }
  }
}

// By hand, in tiles of 20 rows: 100 rows are 5 tiles a stage; the looks are those before each tile and the one where
// the ranks meet after the window.
TEST_F(PrefillCheckpoints, rows_done_by_hand_on_one_rank) {
  const TestLayer layer = layer_of(100, {16, 2, 0, Scorer::kHils});
  struct Case {
    int looks;
    RowsDone want;
  };
  const std::vector<Case> cases = {{0, {0, 0, 0}},    {3, {60, 0, 0}},     {5, {100, 0, 0}},     {6, {100, 0, 0}},
                                   {8, {100, 40, 0}}, {11, {100, 100, 0}}, {13, {100, 100, 40}}, {16, {100, 100, 100}}};
  for (const Case& c : cases) {
    const std::string path = folder_.file(std::to_string(c.looks));
    comm::run_thread_ranks(1, [&](comm::Communicator& communicator) {
      Command command(communicator, layer, {}, path);
      const PrefillResult result = command.run({c.looks});
      expect_rows_done(result.done, c.want);
      EXPECT_EQ(result.stopped, c.looks < 16);
      expect_rows_done(command.find().begun.done, result.stopped ? c.want : RowsDone{});
    });
  }
}

// Rank 1 is told after its two or more window tiles, the meeting and one tile of choices; rank 0 never is. Landmarks:
// it ends its layer. Scores: both end after the same round.
TEST_F(PrefillCheckpoints, rows_done_by_hand_when_one_of_two_is_told) {
  const TestLayer layer = layer_of(100, {16, 2, 0, Scorer::kHils});
  for (const auto merge : {runtime::Merge::kLandmarks, runtime::Merge::kScores}) {
    const std::string path = folder_.file(std::string(runtime::name_of(merge)));
    comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
      Command command(communicator, layer, {partition::Balance::kContiguous, merge}, path);
      const std::int64_t rows = command.rows();
      const bool told = communicator.rank() == 1;
      const PrefillResult result = command.run({told ? static_cast<int>((rows + 19) / 20) + 2 : -1});
      EXPECT_TRUE(result.stopped);
      const std::int64_t others = merge == runtime::Merge::kScores ? 20 : rows;
      expect_rows_done(result.done, told ? RowsDone{rows, 20, 0} : RowsDone{rows, others, others});
    });
  }
}

// The rank that is told waits for the window of the other, twelve tiles, longer than the deadline, and so does the
// other when they go on: neither takes its peer for dead.
TEST_F(PrefillCheckpoints, ranks_wait_for_work_that_was_left_to_others) {
  const TestLayer layer = layer_of(480, {16, 2, 0, Scorer::kHils});
  comm::run_thread_ranks(
      2,
      [&](comm::Communicator& communicator) {
        Command command(communicator, layer, {partition::Balance::kZigzag}, path_);  // as much work for both
        const std::chrono::milliseconds pause(80);
        EXPECT_TRUE(command.run({communicator.rank() == 0 ? 1 : -1, pause}).stopped);
        EXPECT_FALSE(command.run({-1, pause}).stopped);
      },
      std::chrono::milliseconds(500));
}

// Leaves a checkpoint of two ranks in the middle of the choices.
void leave_checkpoint(const TestLayer& layer, const std::string& path) {
  comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
    Command command(communicator, layer, {}, path);
    EXPECT_TRUE(command.run({static_cast<int>((command.rows() + 19) / 20) + 2}).stopped);
  });
}

// What all ranks say of the file: the reason why it does not belong, or "" when they go on from it.
std::string refusal(const TestLayer& layer, const Route& route, int ranks, const std::string& path) {
  std::string reason;
  comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
    const PrefillCheckpoint::Found found = Command(communicator, layer, route, path).find();
    EXPECT_EQ(found.refusal.empty(), found.begun.done.windowed > 0);
    for (const std::string& text : communicator.gather_texts("compare", found.refusal)) EXPECT_EQ(text, found.refusal);
    if (communicator.rank() == 0) reason = found.refusal;
  });
  return reason;
}

TEST_F(PrefillCheckpoints, of_something_else_are_refused_with_the_reason) {
  const TestLayer layer = layer_of(200, {16, 2, 0, Scorer::kHils});
  leave_checkpoint(layer, path_);
  EXPECT_EQ(refusal(layer, {}, 2, path_), "");
  const auto says = [&](const TestLayer& other, const Route& route, int ranks, const std::string& words) {
    const std::string reason = refusal(other, route, ranks, path_);
    EXPECT_NE(reason.find(path_ + ": " + words), std::string::npos) << reason << ", not " << words;
  };
  says(layer, {}, 3, "metadata ranks is 2, this run has 3");
  says(layer, {partition::Balance::kZigzag}, 2, "metadata balance is contiguous, this run has zigzag");
  TestLayer other = layer;
  other.policy.topk = 3;
  says(other, {}, 2, "metadata topk is 2, this run has 3");
  other = layer;
  other.policy.scorer = Scorer::kMean;
  says(other, {}, 2, "metadata scorer is hils, this run has mean");
  other = layer;
  other.policy.choice = Choice::kHead;
  says(other, {}, 2, "metadata choice is group, this run has head");
  other = layer;
  other.policy.fusion = Fusion::kUnion;
  says(other, {}, 2, "metadata fusion is hierarchical, this run has union");
  other = layer;
  other.problem.scale *= 2;
  says(other, {}, 2, "metadata scale is");
  other = layer;
  other.problem.cu_seqlens = {0, 100, 200};
  says(other, {}, 2, "rank 0 had another input");
  // One bit of one value: of the first row, which is on rank 0, and of the last, which is on rank 1.
  for (auto tensor : {&TestLayer::q, &TestLayer::k, &TestLayer::v}) {
    other = layer;
    (other.*tensor).front() ^= std::byte{1};
    says(other, {}, 2, "rank 0 had another input");
    other = layer;
    (other.*tensor).back() ^= std::byte{1};
    says(other, {}, 2, "rank 1 had another input");
  }
  // The merge may be another: it has no part in what is kept.
  EXPECT_EQ(refusal(layer, {partition::Balance::kContiguous, runtime::Merge::kScores}, 2, path_), "");
}

TEST_F(PrefillCheckpoints, that_are_cut_short_are_refused) {
  const TestLayer layer = layer_of(60, {16, 1, 0, Scorer::kHils});
  leave_checkpoint(layer, path_);
  const std::string whole = TemporaryFolder::read(path_);
  for (std::size_t length = 0; length < whole.size(); length += length < 2000 ? 37 : 997) {
    folder_.write("out.partial", whole.substr(0, length));
    EXPECT_NE(refusal(layer, {}, 2, path_), "") << length << " bytes";
  }
}

// A flipped bit is found, or it is in a row that nobody has done, or in text that says nothing.
TEST_F(PrefillCheckpoints, damage_is_found) {
  const TestLayer layer = layer_of(60, {16, 1, 0, Scorer::kHils});
  leave_checkpoint(layer, path_);
  const std::string whole = TemporaryFolder::read(path_);
  std::vector<PrefillResult> want(2);
  const auto read_all = [&](std::vector<PrefillResult>& results) {
    comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
      results[static_cast<std::size_t>(communicator.rank())] = Command(communicator, layer, {}, path_).find().begun;
    });
  };
  read_all(want);
  int found = 0, harmless = 0;
  for (std::size_t at = 0; at < whole.size(); at += at < 2500 ? 1 : 53) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    folder_.write("out.partial", damaged);
    std::vector<PrefillResult> got(2);
    read_all(got);
    if (got[0].out.empty()) {
      EXPECT_TRUE(got[1].out.empty()) << "byte " << at;
      ++found;
      continue;
    }
    ++harmless;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      expect_rows_done(got[rank].done, want[rank].done);
      EXPECT_EQ(got[rank].out, want[rank].out) << "byte " << at;
      EXPECT_EQ(got[rank].lse, want[rank].lse) << "byte " << at;
      EXPECT_EQ(got[rank].selection.chunks, want[rank].selection.chunks) << "byte " << at;
    }
  }
  EXPECT_GT(found, 10 * harmless);
}

}  // namespace
}  // namespace ringmark::test
