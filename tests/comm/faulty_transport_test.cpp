#include "comm/faulty_transport.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>

#include "comm/loopback_transport.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "tests/comm/transport_contract.h"
#include "tests/comm/waited_text.h"

namespace ringmark::comm {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kBlock = 1024;
constexpr std::int64_t kBlocks = 16;
constexpr int kReads = 6;

// Blocks of one rank and a batch of six of them, read through a transport that follows the script.
struct Outcome {
  std::vector<bool> right;  // by read
  std::int64_t injected = 0;
  std::int64_t wrong_bits = 0;
};

Outcome read_spoiled(FaultScript script) {
  const auto communicator = make_single_rank();
  LoopbackTransport inner(*communicator);
  FaultyTransport transport(*communicator, inner, std::move(script));
  contract::fill(transport.expose(kBlocks * kBlock), 0, 0, 0);
  transport.publish();
  std::vector<std::byte> memory(kReads * kBlock, std::byte{0xFF});
  std::vector<RemoteRead> reads;
  for (int i = 0; i < kReads; ++i) {
    reads.push_back({0, 0, 2 * i * kBlock, Bytes(memory).subspan(static_cast<std::size_t>(i * kBlock), kBlock)});
  }
  transport.get(reads)->wait();
  Outcome outcome{.right = {}, .injected = transport.injected()};
  for (const RemoteRead& read : reads) {
    bool right = true;
    for (std::size_t i = 0; i < read.destination.size(); ++i) {
      const std::byte wrong =
          read.destination[i] ^ contract::content(0, 0, 0, read.offset + static_cast<std::int64_t>(i));
      outcome.wrong_bits += std::popcount(static_cast<unsigned char>(wrong));
      right = right && wrong == std::byte{0};
    }
    outcome.right.push_back(right);
  }
  transport.retire();
  return outcome;
}

std::int64_t wrong_reads(const Outcome& outcome) { return std::ranges::count(outcome.right, false); }

TEST(FaultyTransport, is_honest_without_a_script) {
  run_thread_ranks(3, [](Communicator& communicator) {
    LoopbackTransport inner(communicator);
    FaultyTransport transport(communicator, inner, {});
    contract::honours_the_contract(communicator, transport);
    contract::every_fence_shows_what_was_written(communicator, transport);
    EXPECT_EQ(transport.injected(), 0);
  });
}

TEST(FaultyTransport, honours_the_contract_in_any_order_and_twice) {
  run_thread_ranks(3, [](Communicator& communicator) {
    LoopbackTransport inner(communicator);
    FaultyTransport transport(
        communicator, inner,
        {{{.kind = FaultKind::kReorder, .times = 1000}, {.kind = FaultKind::kDuplicate, .times = 1000}}});
    contract::honours_the_contract(communicator, transport);
    EXPECT_GT(transport.injected(), 0);
  });
}

TEST(FaultyTransport, flips_one_bit) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Outcome outcome = read_spoiled({.faults = {{.kind = FaultKind::kFlipBit}}, .seed = seed});
    EXPECT_EQ(outcome.injected, 1);
    EXPECT_EQ(outcome.wrong_bits, 1);
  }
}

TEST(FaultyTransport, brings_another_block) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(wrong_reads(read_spoiled({.faults = {{.kind = FaultKind::kOtherOffset}}, .seed = seed})), 1);
    EXPECT_EQ(wrong_reads(read_spoiled({.faults = {{.kind = FaultKind::kSwap}}, .seed = seed})), 2);
    EXPECT_EQ(wrong_reads(read_spoiled({.faults = {{.kind = FaultKind::kTruncate}}, .seed = seed})), 1);
  }
}

TEST(FaultyTransport, spoils_the_named_calls_alone) {
  EXPECT_EQ(read_spoiled({.faults = {{.kind = FaultKind::kFlipBit, .at = 1}}}).injected, 0);
  EXPECT_EQ(read_spoiled({.faults = {{.kind = FaultKind::kFlipBit, .times = 0}}}).injected, 0);
  const auto first = read_spoiled({.faults = {{.kind = FaultKind::kFlipBit}}, .seed = 7});
  const auto second = read_spoiled({.faults = {{.kind = FaultKind::kFlipBit}}, .seed = 7});
  EXPECT_EQ(first.right, second.right);
}

// Two ranks, the script on rank 1; what rank 1's read ends with.
std::string failure_of(const FaultScript& script, std::chrono::duration<double> timeout) {
  std::string text;
  run_thread_ranks(
      2,
      [&](Communicator& communicator) {
        LoopbackTransport inner(communicator);
        FaultyTransport transport(communicator, inner, communicator.rank() == 1 ? script : FaultScript{});
        contract::fill(transport.expose(kBlock), communicator.rank(), 0, 0);
        transport.publish();
        std::vector<std::byte> memory(kBlock);
        const RemoteRead read{0, 0, 0, memory};
        try {
          transport.get(std::span(&read, 1))->wait();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::kPeer);
          text = error.what();
        }
      },
      timeout);
  return text;
}

TEST(FaultyTransport, drops_a_completion_until_the_timeout) {
  EXPECT_EQ(without_seconds(failure_of({.faults = {{.kind = FaultKind::kDrop}}}, milliseconds(200))),
            "rank 1: stage 'block reads': waited ... s for rank 0");
}

TEST(FaultyTransport, reports_an_error_that_names_the_peer) {
  EXPECT_EQ(failure_of({.faults = {{.kind = FaultKind::kError}}}, milliseconds(200)),
            "rank 1: stage 'block reads': read from rank 0 failed: injected fault");
}

TEST(FaultyTransport, takes_longer) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(failure_of({.faults = {{.kind = FaultKind::kDelay, .delay = milliseconds(150)}}}, milliseconds(5000)), "");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(150));
}

TEST(FaultyTransport, ends_or_stops_its_process) {
  for (const auto& [kind, signal] : {std::pair(FaultKind::kKill, SIGKILL), std::pair(FaultKind::kStop, SIGSTOP)}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      read_spoiled({.faults = {{.kind = kind}}});
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
    if (kind == FaultKind::kKill) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal);
    } else {
      EXPECT_TRUE(WIFSTOPPED(status) && WSTOPSIG(status) == signal);
      ASSERT_EQ(kill(child, SIGKILL), 0);
      ASSERT_EQ(waitpid(child, &status, 0), child);
    }
  }
}

}  // namespace
}  // namespace ringmark::comm
