#include "comm/thread_ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "tests/comm/communicator_contract.h"
#include "tests/comm/transport_contract.h"

namespace ringmark::comm {
namespace {

using std::chrono::milliseconds;

class ThreadRanks : public testing::TestWithParam<int> {};

TEST_P(ThreadRanks, honour_the_communicator_contract) {
  run_thread_ranks(GetParam(), [&](Communicator& communicator) {
    EXPECT_EQ(communicator.size(), GetParam());
    EXPECT_TRUE(communicator.shares_address_space());
    contract::honours_the_contract(communicator);
  });
}

TEST_P(ThreadRanks, honour_the_transport_contract_by_loopback) {
  run_thread_ranks(GetParam(), [](Communicator& communicator) {
    const ChosenTransport chosen = choose_transport(communicator, TransportChoice::kAuto);
    EXPECT_EQ(chosen.transport->name(), "loopback");
    EXPECT_EQ(chosen.why.substr(0, 9), "loopback:");
    contract::honours_the_contract(communicator, *chosen.transport);
    contract::long_reads_arrive_whole(communicator, *chosen.transport);
    contract::every_fence_shows_what_was_written(communicator, *chosen.transport);
    contract::impossible_regions_are_refused_on_every_rank(communicator, *chosen.transport);
    contract::honours_the_contract(communicator, *chosen.transport);
  });
}

TEST_P(ThreadRanks, name_a_missing_rank) {
  const auto collectives = {
      +[](Communicator& c) { c.barrier("lonely"); },
      +[](Communicator& c) { c.gather_sizes("lonely", 1); },
      +[](Communicator& c) {
        double value = 0.0;
        c.all_reduce_max("lonely", std::span(&value, 1));
      },
      +[](Communicator& c) {
        const std::vector<contract::Message> out(static_cast<std::size_t>(c.size()), contract::Message(8));
        std::vector<contract::Message> in = out;
        const std::vector<ConstBytes> send(out.begin(), out.end());
        c.start_all_to_all("lonely", send, contract::views_of(in))->wait({});
      },
  };
  for (const auto collective : collectives) {
    run_thread_ranks(
        GetParam(), [&](Communicator& communicator) { contract::missing_rank_is_named(communicator, collective); },
        milliseconds(300));
  }
}

TEST_P(ThreadRanks, await_a_late_rank_that_is_allowed_to_be) {
  run_thread_ranks(GetParam(), contract::late_rank_is_awaited, milliseconds(300));
}

TEST_P(ThreadRanks, rethrow_the_first_exception_and_wake_the_others) {
  const int last = GetParam() - 1;
  std::atomic<int> woken{0};
  try {
    run_thread_ranks(GetParam(), [&](Communicator& communicator) {
      if (communicator.rank() == last) throw std::out_of_range("the first");
      try {
        communicator.barrier("never complete");
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kPeer);
        EXPECT_NE(std::string(error.what()).find("the first"), std::string::npos) << error.what();
        ++woken;
        throw;
      }
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "the first");
  }
  EXPECT_EQ(woken, last);
}

TEST_P(ThreadRanks, are_woken_by_abort) {
  if (GetParam() == 1) GTEST_SKIP() << "nobody to wake";
  run_thread_ranks(GetParam(), [](Communicator& communicator) {
    if (communicator.rank() == 0) {
      communicator.abort(75);
      return;
    }
    try {
      communicator.barrier("never complete");
      ADD_FAILURE() << "the barrier completed";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("aborted the job with code 75"), std::string::npos) << error.what();
    }
  });
}

TEST_P(ThreadRanks, do_not_wait_for_a_rank_that_has_returned) {
  if (GetParam() == 1) GTEST_SKIP() << "nobody to wait for";
  EXPECT_THROW(run_thread_ranks(GetParam(),
                                [](Communicator& communicator) {
                                  if (communicator.rank() != 0) communicator.barrier("left alone");
                                }),
               Error);
}

TEST_P(ThreadRanks, refuse_transports_that_need_mpi) {
  run_thread_ranks(GetParam(), [](Communicator& communicator) {
    EXPECT_THROW(choose_transport(communicator, TransportChoice::kRma), Error);
    EXPECT_THROW(choose_transport(communicator, TransportChoice::kRequest), Error);
    EXPECT_THROW(choose_transport(communicator, TransportChoice::kUcx), Error);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadRanks, testing::Values(1, 2, 3, 7), testing::PrintToStringParamName());

TEST(SingleRank, honours_both_contracts) {
  const auto communicator = make_single_rank();
  EXPECT_EQ(communicator->rank(), 0);
  EXPECT_EQ(communicator->size(), 1);
  contract::honours_the_contract(*communicator);
  const ChosenTransport chosen = choose_transport(*communicator, TransportChoice::kAuto);
  contract::honours_the_contract(*communicator, *chosen.transport);
}

}  // namespace
}  // namespace ringmark::comm
