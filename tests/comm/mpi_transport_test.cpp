#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "comm/faulty_transport.h"
#include "comm/mpi_communicator.h"
#include "comm/request_transport.h"
#include "comm/rma_transport.h"
#include "comm/transport_probe.h"
#include "tests/comm/transport_contract.h"
#ifdef RINGMARK_HAS_UCX
#include "comm/ucx_transport.h"
#include "tests/comm/waited_text.h"
#endif

namespace ringmark::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

std::string name_of(TransportChoice choice) {
  switch (choice) {
    case TransportChoice::kRma: return "rma";
    case TransportChoice::kRequest: return "request";
    case TransportChoice::kUcx: return "ucx";
    case TransportChoice::kAuto: break;
  }
  return "auto";
}

std::vector<TransportChoice> built_transports() {
  std::vector<TransportChoice> built = {TransportChoice::kRma, TransportChoice::kRequest};
#ifdef RINGMARK_HAS_UCX
  built.push_back(TransportChoice::kUcx);
#endif
  return built;
}

class ForcedTransport : public testing::TestWithParam<TransportChoice> {
 protected:
  static std::string name() { return name_of(GetParam()); }
  MpiCommunicator communicator_{MPI_COMM_WORLD, {.timeout = seconds(60)}};
};

TEST_P(ForcedTransport, honours_the_contract) {
  const ChosenTransport chosen = choose_transport(communicator_, GetParam());
  EXPECT_EQ(chosen.transport->name(), name());
  EXPECT_EQ(chosen.why.substr(0, name().size() + 1), name() + ":");
  if (communicator_.rank() == 0) RecordProperty("why", chosen.why);
  contract::honours_the_contract(communicator_, *chosen.transport);
}

TEST_P(ForcedTransport, moves_long_reads_whole) {
  const ChosenTransport chosen = choose_transport(communicator_, GetParam());
  contract::long_reads_arrive_whole(communicator_, *chosen.transport);
}

TEST_P(ForcedTransport, shows_after_every_fence_what_was_written) {
  const ChosenTransport chosen = choose_transport(communicator_, GetParam());
  contract::every_fence_shows_what_was_written(communicator_, *chosen.transport);
}

TEST_P(ForcedTransport, splits_reads_at_the_slice_limit) {
  MpiCommunicator communicator(MPI_COMM_WORLD, {.timeout = seconds(60), .slice_bytes = 1000});
  const ChosenTransport chosen = choose_transport(communicator, GetParam());
  contract::honours_the_contract(communicator, *chosen.transport);
}

TEST_P(ForcedTransport, refuses_impossible_regions_on_every_rank_and_goes_on) {
  const ChosenTransport chosen = choose_transport(communicator_, GetParam());
  contract::impossible_regions_are_refused_on_every_rank(communicator_, *chosen.transport);
  contract::honours_the_contract(communicator_, *chosen.transport);
}

// The owner computes and calls nothing of MPI; the reader is done before the owner is.
TEST_P(ForcedTransport, reads_from_a_busy_owner) {
  if (communicator_.size() == 1) GTEST_SKIP() << "nobody to read from";
  const ChosenTransport chosen = choose_transport(communicator_, GetParam());
  contract::fill(chosen.transport->expose(300'000), communicator_.rank(), 0, 0);
  chosen.transport->publish();
  std::int64_t done_at = 0;
  if (communicator_.rank() == 1) {
    const auto until = Clock::now() + milliseconds(300);
    volatile double work = 1.0;
    while (Clock::now() < until) work = work * 1.0000001;
    done_at = Clock::now().time_since_epoch().count();
  } else if (communicator_.rank() == 0) {
    contract::Batch batch(300'000);
    batch.add(1, 0, 0, 300'000);
    contract::read_and_check(*chosen.transport, batch, 0);
    done_at = Clock::now().time_since_epoch().count();
  }
  const auto times = communicator_.gather_sizes("compare the clocks of one host", done_at);
  if (communicator_.host_ranks() == communicator_.size()) {
    EXPECT_LT(times[0], times[1]);
  }
  chosen.transport->retire();
}

TEST_P(ForcedTransport, names_a_rank_that_does_not_publish) {
  if (communicator_.size() == 1) GTEST_SKIP() << "nobody to wait for";
  MpiCommunicator hasty(MPI_COMM_WORLD, {.timeout = seconds(1)});
  const ChosenTransport chosen = choose_transport(hasty, GetParam());
  chosen.transport->expose(100);
  const int missing = communicator_.size() - 1;
  if (communicator_.rank() != missing) {
    try {
      chosen.transport->publish();
      ADD_FAILURE() << "went on without rank " << missing;
    } catch (const Error& error) {
      EXPECT_EQ(without_seconds(error.what()), "rank " + std::to_string(communicator_.rank()) +
                                                   ": stage 'publish regions': waited ... s for rank " +
                                                   std::to_string(missing));
    }
  }
  communicator_.barrier("everybody is back");
}

INSTANTIATE_TEST_SUITE_P(Mpi, ForcedTransport, testing::ValuesIn(built_transports()),
                         [](const auto& choice) { return name_of(choice.param); });

TEST(AutomaticTransport, works_and_says_why) {
  MpiCommunicator communicator(MPI_COMM_WORLD, {.timeout = seconds(60)});
  const ChosenTransport chosen = choose_transport(communicator, TransportChoice::kAuto);
  EXPECT_EQ(chosen.why.substr(0, chosen.transport->name().size()), chosen.transport->name());
  if (communicator.size() == 1) {
    EXPECT_EQ(chosen.transport->name(), "loopback");
  }
  contract::honours_the_contract(communicator, *chosen.transport);
}

// A container's /dev/shm is often far smaller than the regions.
TEST(AutomaticTransport, leaves_shared_memory_alone_where_it_has_no_room) {
  MpiCommunicator communicator;
  const auto chosen = choose_transport(communicator, TransportChoice::kAuto, std::int64_t{1} << 50);
  EXPECT_EQ(chosen.transport->name(), communicator.size() == 1 ? "loopback" : "request");
  EXPECT_EQ(chosen.why.find("/dev/shm") == std::string::npos, communicator.size() == 1) << chosen.why;
}

TEST(Probe, finds_a_transport_that_reads_wrong_bytes) {
  MpiCommunicator communicator(MPI_COMM_WORLD, {.timeout = seconds(60)});
  if (communicator.size() == 1) GTEST_SKIP() << "nobody to read from";
  RequestTransport inner(communicator, kProbeLimit);
  FaultyTransport spoiled(communicator, inner, {{{.kind = FaultKind::kFlipBit, .times = 100}}});
  const ProbeResult result = probe_transport(communicator, spoiled);
  EXPECT_FALSE(result.passed);
  EXPECT_NE(result.words.find("wrong content"), std::string::npos) << result.words;
}

TEST(Probe, finds_a_transport_that_needs_its_target) {
  MpiCommunicator communicator(MPI_COMM_WORLD, {.timeout = seconds(60)});
  if (communicator.size() == 1) GTEST_SKIP() << "nobody to read from";
  RequestTransport inner(communicator, kProbeLimit);
  FaultyTransport spoiled(communicator, inner,
                          {{{.kind = FaultKind::kDelay, .times = 100, .delay = milliseconds(110)}}});
  const ProbeResult result = probe_transport(communicator, spoiled);
  EXPECT_FALSE(result.passed);
  EXPECT_NE(result.words.find("waits for its target"), std::string::npos) << result.words;
}

// The whole process of the owner stands still, its serving thread included.
template <class Transport>
void expect_named_when_standing_still(MpiCommunicator& communicator) {
  if (communicator.size() == 1 || communicator.host_ranks() != communicator.size()) {
    GTEST_SKIP() << "needs a second process on this host";
  }
  for (const std::int64_t bytes : {std::int64_t{100}, std::int64_t{9'000'000}}) {
    Transport transport(communicator, milliseconds(500));
    contract::fill(transport.expose(bytes), communicator.rank(), 0, 0);
    transport.publish();
    const auto processes = communicator.gather_sizes("processes", getpid());
    if (communicator.rank() == 0) {
      const auto owner = static_cast<pid_t>(processes[1]);
      std::vector<std::byte> memory(static_cast<std::size_t>(bytes));
      ASSERT_EQ(kill(owner, SIGSTOP), 0);
      std::this_thread::sleep_for(milliseconds(100));  // every thread of it stops on its own
      const RemoteRead read{1, 0, 0, memory};
      try {
        transport.get(std::span(&read, 1))->wait();
        ADD_FAILURE() << "read from a process that stands still";
      } catch (const Error& error) {
        EXPECT_EQ(without_seconds(error.what()), "rank 0: stage 'block reads': waited ... s for rank 1");
        EXPECT_EQ(error.code(), ExitCode::kPeer);
      }
      ASSERT_EQ(kill(owner, SIGCONT), 0);
    }
    communicator.barrier("the owner goes on");
  }
}

TEST(RequestTransport, names_an_owner_that_stands_still) {
  MpiCommunicator communicator(MPI_COMM_WORLD, {.timeout = seconds(60)});
  expect_named_when_standing_still<RequestTransport>(communicator);
}

#ifdef RINGMARK_HAS_UCX
// Over shared segments a read needs nothing of its owner; over TCP it does.
TEST_P(ForcedTransport, of_ucx_over_tcp_names_an_owner_that_stands_still) {
  const char* transports = std::getenv("UCX_TLS");
  if (GetParam() != TransportChoice::kUcx || transports == nullptr || std::string_view(transports) != "tcp,self") {
    GTEST_SKIP() << "needs UCX_TLS=tcp,self";
  }
  expect_named_when_standing_still<UcxTransport>(communicator_);
}
#endif

}  // namespace
}  // namespace ringmark::comm
