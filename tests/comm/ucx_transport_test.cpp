#include "comm/ucx_transport.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include "comm/thread_ranks.h"
#include "tests/comm/transport_contract.h"
#include "tests/kvstore/temporary_folder.h"

namespace ringmark::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::vector<int> all_ranks(const Communicator& communicator) {
  std::vector<int> ranks(static_cast<std::size_t>(communicator.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

class UcxOnThreads : public testing::TestWithParam<int> {};

TEST_P(UcxOnThreads, honours_the_contract) {
  run_thread_ranks(GetParam(), [](Communicator& communicator) {
    UcxTransport transport(communicator, all_ranks(communicator), seconds(30));
    contract::honours_the_contract(communicator, transport);
    contract::long_reads_arrive_whole(communicator, transport);
    contract::every_fence_shows_what_was_written(communicator, transport);
  });
}

// Every peer counts as one of another host: endpoints that report the loss of a peer, and no shared memory.
TEST_P(UcxOnThreads, honours_the_contract_between_hosts) {
  run_thread_ranks(GetParam(), [](Communicator& communicator) {
    const int self = communicator.rank();
    UcxTransport transport(communicator, std::span(&self, 1), seconds(30));
    contract::honours_the_contract(communicator, transport);
    contract::long_reads_arrive_whole(communicator, transport);
    contract::every_fence_shows_what_was_written(communicator, transport);
  });
}

TEST_P(UcxOnThreads, refuses_impossible_regions_and_goes_on) {
  run_thread_ranks(GetParam(), [](Communicator& communicator) {
    UcxTransport transport(communicator, all_ranks(communicator), seconds(30));
    contract::impossible_regions_are_refused_on_every_rank(communicator, transport);
    contract::honours_the_contract(communicator, transport);
  });
}

TEST_P(UcxOnThreads, honours_the_contract_with_regions_that_spill) {
  const test::TemporaryFolder folder;
  run_thread_ranks(GetParam(), [&](Communicator& communicator) {
    const int self = communicator.rank();
    const std::vector<int> all = all_ranks(communicator);
    for (const std::span<const int> ranks_of_host : {std::span<const int>(all), std::span(&self, 1)}) {
      UcxTransport transport(communicator, ranks_of_host, seconds(30), SpillPolicy{4096, folder.file("")});
      contract::impossible_regions_are_refused_on_every_rank(communicator, transport);
      contract::honours_the_contract(communicator, transport);
    }
  });
  EXPECT_TRUE(folder.names().empty());
}

INSTANTIATE_TEST_SUITE_P(Ranks, UcxOnThreads, testing::Values(1, 2, 3, 4), testing::PrintToStringParamName());

TEST(UcxTransport, leaves_signals_alone) {
  for (const int signal : {SIGHUP, SIGILL, SIGTERM, SIGUSR1}) {
    struct sigaction action {};
    ASSERT_EQ(sigaction(signal, nullptr, &action), 0);
    EXPECT_EQ(action.sa_handler, SIG_DFL) << strsignal(signal);
  }
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

TEST(UcxTransport, sleeps_when_nobody_reads) {
  const auto communicator = make_single_rank();
  UcxTransport transport(*communicator, all_ranks(*communicator), seconds(30));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_LT(cpu_seconds() - before, 0.1);
}

// Local addresses of the listening TCP sockets of this process, as the kernel writes them.
std::set<std::string> listening_addresses() {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::set<std::string> addresses;
  std::ifstream table("/proc/self/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
    constexpr std::string_view kListening = "0A";
    if (state == kListening && inodes.contains(inode)) addresses.insert(local.substr(0, local.find(':')));
  }
  return addresses;
}

TEST(UcxTransport, listens_on_the_loopback_interface_alone) {
  const auto communicator = make_single_rank();
  const UcxTransport transport(*communicator, all_ranks(*communicator), seconds(30));
  EXPECT_EQ(listening_addresses(), std::set<std::string>{"0100007F"});
}

}  // namespace
}  // namespace ringmark::comm
