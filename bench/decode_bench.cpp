// What decoding costs by the length of the context: ranks that keep one sharded layer decode tokens one by one; chosen
// blocks are pulled, partial results are pushed, or the cost model decides. usage: mpirun -n 4 decode_bench
//
// The rows of the shortest context must choose the chunks that one prefill of the whole chooses; the last rows of every
// run ask for needles, which must be found. A wrong answer fails the benchmark.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <span>
#include <vector>

#include "comm/block_transport.h"
#include "comm/mpi_communicator.h"
#include "comm/mpi_session.h"
#include "core/error.h"
#include "runtime/decode.h"
#include "runtime/planted_layer.h"
#include "runtime/prefill.h"

namespace ringmark {
namespace {

using runtime::Exchange;

constexpr std::int64_t kContexts[] = {std::int64_t{16} << 10, std::int64_t{64} << 10, std::int64_t{256} << 10,
                                      std::int64_t{1} << 20};
constexpr Exchange kExchanges[] = {Exchange::kAuto, Exchange::kPull, Exchange::kPush};
constexpr std::int64_t kTimed = 64;     // decoded tokens
constexpr std::int64_t kQuestions = 8;  // decoded after them, one a needle
constexpr std::int64_t kFillRows = 8192;
constexpr double kAgreement = 0.9;  // neighbours that ask the same; the others turn to one of 8 topics
constexpr int kRounds = 3;          // the fastest counts: a shared host disturbs

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

AttentionProblem problem_of(std::int64_t context) {
  AttentionProblem problem;
  problem.tokens = context + kTimed + kQuestions;
  problem.heads = 4;
  problem.kv_heads = 1;
  problem.landmark_slots = true;
  problem.validate();
  return problem;
}

// Consecutive rows of the layer, in memory of their own.
class Rows {
 public:
  Rows(const AttentionProblem& problem, std::int64_t count)
      : sequences_(size(count), 0), shard_(problem, count, false) {}

  runtime::LayerShard& shard() { return shard_; }
  runtime::NewTokens view() const {
    return {sequences_, shard_.queries(), shard_.queries(), shard_.keys(), shard_.values()};
  }

 private:
  std::vector<std::int64_t> sequences_;
  runtime::LayerShard shard_;
};

// One context: its rows, sharded as they will be kept.
struct Case {
  Case(comm::Communicator& communicator, std::int64_t context_tokens)
      : ranks(communicator),
        context(context_tokens),
        problem(problem_of(context_tokens)),
        grid(problem, policy),
        layout(partition::make_layout(grid, ranks.size(), partition::Balance::kRotate)),
        planted(problem, policy, {.needles = kQuestions, .agreement = kAgreement}),
        shard(planted.make_shard(layout, RankId(ranks.rank()), 1)) {}

  // The rows of these tokens that this rank owns; the others are zero.
  Rows own_rows(Range<TokenId> tokens) {
    Rows rows(problem, tokens.size());
    const auto copy = [&](std::vector<std::byte>& to, const std::vector<std::byte>& from, std::int64_t heads) {
      const std::int64_t row = heads * problem.head_dim * size_of(problem.dtype);
      for (TokenId token = tokens.begin; token < tokens.end;) {
        const ChunkId chunk = grid.chunk_of(token);
        const TokenId end = std::min(tokens.end, grid.tokens_of(chunk).end);
        if (layout.owner(chunk) == RankId(ranks.rank())) {
          const std::int64_t at = layout.first_row(chunk) + (token - grid.tokens_of(chunk).begin);
          std::memcpy(to.data() + (token - tokens.begin) * row, from.data() + at * row, size((end - token) * row));
        }
        token = end;
      }
    };
    copy(rows.shard().q(), shard.q(), problem.heads);
    copy(rows.shard().k(), shard.k(), problem.kv_heads);
    copy(rows.shard().v(), shard.v(), problem.kv_heads);
    return rows;
  }

  // Collective: the rows of these tokens.
  Rows all_rows(Range<TokenId> tokens) {
    Rows rows = own_rows(tokens);
    const auto complete = [&](std::vector<std::byte>& bytes) {
      std::vector<std::vector<std::byte>> of_rank(size(ranks.size()), std::vector<std::byte>(bytes.size()));
      const std::vector<comm::Bytes> all(of_rank.begin(), of_rank.end());
      ranks.all_gather("gather the rows to decode", bytes, all);
      const std::int64_t row = static_cast<std::int64_t>(bytes.size()) / tokens.size();
      for (TokenId token = tokens.begin; token < tokens.end; ++token) {
        const std::int64_t at = (token - tokens.begin) * row;
        const auto& from = of_rank[size(layout.owner(grid.chunk_of(token)).value())];
        std::memcpy(bytes.data() + at, from.data() + at, size(row));
      }
    };
    complete(rows.shard().q());
    complete(rows.shard().k());
    complete(rows.shard().v());
    return rows;
  }

  comm::Communicator& ranks;
  std::int64_t context;
  AttentionPolicy policy;
  AttentionProblem problem;
  partition::SequenceGrid grid;
  partition::Layout layout;
  runtime::PlantedLayer planted;
  runtime::LayerShard shard;
};

struct Run {
  double step_seconds = 0.0;
  double select_seconds = 0.0;     // of a step, mean of the ranks: all of the choice
  double score_seconds = 0.0;      // its part that this rank's landmarks take; the rest waits for others
  runtime::DecodeTraffic traffic;  // of the timed steps and all ranks
  std::uint64_t digest = 0;        // of all decoded rows
  runtime::NeedleCount needles;
};

// Collective, both.
double mean_of_ranks(comm::Communicator& ranks, double seconds) {
  std::array<std::int64_t, 1> nanoseconds = {static_cast<std::int64_t>(seconds * 1e9)};
  ranks.all_reduce_sum("sum the seconds", nanoseconds);
  return static_cast<double>(nanoseconds[0]) * 1e-9 / ranks.size();
}
runtime::DecodeTraffic sum_of_ranks(comm::Communicator& ranks, const runtime::DecodeTraffic& t) {
  std::array<std::int64_t, 7> sums = {t.bytes_pulled,  t.bytes_pushed,  t.bytes_gathered, t.bytes_of_plans,
                                      t.blocks_pulled, t.blocks_pushed, t.cache_hits};
  ranks.all_reduce_sum("sum the traffic", sums);
  return {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6]};
}

void fill(Case& of, runtime::KeptLayer& kept) {
  for (std::int64_t begin = 0; begin < of.context; begin += kFillRows) {
    // A rank stores the rows of its own chunks and looks at no other.
    const TokenId end(std::min(of.context, begin + kFillRows));
    kept.append("fill the context", of.own_rows({TokenId(begin), end}).view());
  }
}

// Collective.
Run measure(Case& of, Exchange exchange) {
  const runtime::KeptShape shape{0, of.problem, of.policy};
  const auto chosen = comm::choose_transport(of.ranks, comm::TransportChoice::kAuto,
                                             runtime::KeptLayer::exposed_bytes(shape, of.ranks.size()));
  runtime::KeptLayer kept(of.ranks, *chosen.transport, shape, 1);
  fill(of, kept);
  const Rows tail = of.all_rows({TokenId(of.context), TokenId(of.problem.tokens)});
  runtime::DecodeOptions options;
  options.exchange = exchange;
  runtime::Decoder decoder(of.ranks, *chosen.transport, kept, options);

  Run run;
  std::vector<TokenId> answered;
  std::vector<float> answers;
  const auto decode = [&](std::int64_t row) {
    runtime::DecodeStep step = decoder.step(tail.view().slice(row, row + 1));
    run.digest += kernels::selection_digest(step.selection, step.tokens);
    if (step.rows.empty()) return step.traffic;
    answered.push_back(step.tokens.front());
    answers.insert(answers.end(), step.out.begin(), step.out.end());
    return step.traffic;
  };
  of.ranks.barrier("start decoding");
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t row = 0; row < kTimed; ++row) run.traffic += decode(row);
  of.ranks.barrier("stop decoding");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double select_seconds = decoder.clock().seconds("select"), score_seconds = decoder.clock().seconds("score");
  for (std::int64_t row = kTimed; row < kTimed + kQuestions; ++row) decode(row);

  run.step_seconds = seconds / static_cast<double>(kTimed);
  run.select_seconds = mean_of_ranks(of.ranks, select_seconds) / static_cast<double>(kTimed);
  run.score_seconds = mean_of_ranks(of.ranks, score_seconds) / static_cast<double>(kTimed);
  run.traffic = sum_of_ranks(of.ranks, run.traffic);
  run.needles = of.planted.count_recovered(of.ranks, answered, answers);
  chosen.transport->retire();
  return run;
}

// Collective: the digest of the same rows in one prefill of the whole.
std::uint64_t prefill_digest(Case& of) {
  const auto chosen = comm::choose_transport(of.ranks, comm::TransportChoice::kAuto);
  runtime::SilentProgress progress;
  const auto whole = runtime::prefill(of.ranks, *chosen.transport, of.problem, of.policy, of.layout, of.shard,
                                      runtime::PrefillOptions(), progress);
  const std::vector<TokenId> tokens = of.layout.tokens_of(RankId(of.ranks.rank()));
  const auto first = std::lower_bound(tokens.begin(), tokens.end(), TokenId(of.context));
  const std::vector<TokenId> decoded(first, tokens.end());
  kernels::Selection selection(static_cast<std::int64_t>(decoded.size()), of.problem.kv_heads, of.policy.topk);
  std::copy(whole.selection.chunks.end() - std::ssize(selection.chunks), whole.selection.chunks.end(),
            selection.chunks.begin());
  std::array<std::int64_t, 1> sum = {static_cast<std::int64_t>(kernels::selection_digest(selection, decoded))};
  of.ranks.all_reduce_sum("sum digests", sum);
  chosen.transport->retire();
  return static_cast<std::uint64_t>(sum[0]);
}

// Bytes that a rank receives when all K and V of the context are gathered.
double bytes_of_all(std::int64_t context, int ranks) {
  const AttentionProblem problem = problem_of(context);
  const std::int64_t all = 2 * context * problem.kv_heads * problem.head_dim * size_of(problem.dtype);
  return static_cast<double>(all) * (ranks - 1) / ranks;
}

using Runs = std::array<std::array<Run, std::size(kExchanges)>, std::size(kContexts)>;

double other_seconds(const Run& run) { return run.step_seconds - run.select_seconds; }

void print_line(std::size_t context, std::size_t exchange, const Runs& runs, int ranks) {
  const Run& run = runs[context][exchange];
  const auto kib = [&](std::int64_t bytes) {
    return static_cast<double>(bytes) / (static_cast<double>(kTimed * ranks) * 1024.0);
  };
  const runtime::DecodeTraffic& traffic = run.traffic;
  const std::int64_t gathered = traffic.bytes_gathered + traffic.bytes_of_plans;
  const double moved = kib(traffic.bytes_pulled + traffic.bytes_pushed + gathered);
  const double all = bytes_of_all(kContexts[context], ranks) / 1024.0;
  const auto looked_up = static_cast<double>(std::max<std::int64_t>(1, traffic.cache_hits + traffic.blocks_pulled));
  fmt::print("{:>7}K {:>8} {:>8.0f} {:>6.2f} | {:>6.0f} {:>6.0f} {:>6.0f} | ", kContexts[context] >> 10,
             name_of(kExchanges[exchange]), 1.0 / run.step_seconds,
             run.step_seconds / runs.front()[exchange].step_seconds, run.score_seconds * 1e6,
             (run.select_seconds - run.score_seconds) * 1e6, other_seconds(run) * 1e6);
  fmt::print("{:>6.1f} {:>6.1f} {:>8.1f} {:>7.0f} {:>7.3f}% | {:>4.0f}%\n", kib(traffic.bytes_pulled),
             kib(traffic.bytes_pushed), kib(gathered), all, 100.0 * moved / all,
             100.0 * static_cast<double>(traffic.cache_hits) / looked_up);
}

void print_table(const Runs& runs, int ranks) {
  fmt::print("{} tokens decoded one by one, H=4 Hkv=1 d=64 S=64 W=128 K=16 bf16, {} ranks x 1 thread; best of {}\n",
             kTimed, ranks, kRounds);
  fmt::print("{:>8} {:>8} {:>8} {:>6} | {:^20} | {:^38} | {}\n", "", "", "", "step /", "us of a step and rank",
             "KiB received by a rank in a step", "cache");
  fmt::print("{:>8} {:>8} {:>8} {:>6} | {:>6} {:>6} {:>6} | {:>6} {:>6} {:>8} {:>7} {:>8} | {}\n", "context",
             "exchange", "tokens/s", "first", "score", "gather", "rest", "pulled", "pushed", "gathered", "all KV",
             "of all", "hits");
  for (std::size_t context = 0; context < runs.size(); ++context) {
    for (std::size_t exchange = 0; exchange < std::size(kExchanges); ++exchange) {
      print_line(context, exchange, runs, ranks);
    }
  }
  // Pulling waits for no collective but that of the chunk that closes: the rest is work.
  constexpr std::size_t kPulled = 1;
  static_assert(kExchanges[kPulled] == Exchange::kPull);
  const Run& first = runs.front()[kPulled];
  const Run& last = runs.back()[kPulled];
  const auto share = [](const Run& run) { return 100.0 * run.score_seconds / run.step_seconds; };
  fmt::print(
      "scoring {} times the chunks takes {:.0f} times as long, the rest {:.2f} times (pull); it is {:.0f}% of a "
      "step at {}K and {:.0f}% at {}K\n",
      *std::rbegin(kContexts) / *std::begin(kContexts), last.score_seconds / first.score_seconds,
      other_seconds(last) / other_seconds(first), share(first), *std::begin(kContexts) >> 10, share(last),
      *std::rbegin(kContexts) >> 10);
}

// Collective. Whether every answer was right.
bool run(comm::Communicator& ranks) {
  bool right = true;
  Runs best;
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t context = 0; context < std::size(kContexts); ++context) {
      Case of(ranks, kContexts[context]);
      std::array<std::uint64_t, std::size(kExchanges)> digests{};
      for (std::size_t exchange = 0; exchange < std::size(kExchanges); ++exchange) {
        const Run run = measure(of, kExchanges[exchange]);
        right = right && run.needles.planted == kQuestions && run.needles.recovered == kQuestions;
        digests[exchange] = run.digest;
        Run& fastest = best[context][exchange];
        if (round == 0 || run.step_seconds < fastest.step_seconds) fastest = run;
      }
      const std::uint64_t wanted = context == 0 ? prefill_digest(of) : digests.front();
      for (const std::uint64_t digest : digests) right = right && digest == wanted;
    }
  }
  if (ranks.rank() == 0) {
    print_table(best, ranks.size());
    fmt::print("answers {}\n", right ? "correct" : "WRONG");
  }
  return right;
}

}  // namespace
}  // namespace ringmark

int main() {
  const ringmark::comm::MpiSession session;
  try {
    ringmark::comm::MpiCommunicator ranks;
    return ringmark::run(ranks) ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const ringmark::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    ringmark::comm::MpiSession::abort(static_cast<int>(error.code()));
  }
}
