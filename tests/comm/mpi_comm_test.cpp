#include <gtest/gtest.h>

#include <chrono>

#include "comm/mpi_communicator.h"
#include "comm/peer_requests.h"
#include "tests/comm/communicator_contract.h"
#include "tests/comm/waited_text.h"

namespace ringmark::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr MpiOptions kPatient{.timeout = seconds(60)};

TEST(MpiCommunicator, honours_the_contract) {
  MpiCommunicator communicator(MPI_COMM_WORLD, kPatient);
  EXPECT_EQ(communicator.shares_address_space(), communicator.size() == 1);
  EXPECT_EQ(communicator.ranks_of_host().size(), static_cast<std::size_t>(communicator.host_ranks()));
  contract::honours_the_contract(communicator);
}

// open-mpi/ompi#5383, #14002: counts are int. A limit of 1000 bytes sends every larger message in slices.
TEST(MpiCommunicator, splits_messages_alike_on_both_sides) {
  MpiCommunicator communicator(MPI_COMM_WORLD, {.timeout = seconds(60), .slice_bytes = 1000});
  contract::honours_the_contract(communicator);
  contract::all_gather_delivers_unequal_sizes(communicator, 1000);
  contract::all_gather_delivers_unequal_sizes(communicator, 1001);
}

TEST(MpiCommunicator, awaits_a_late_rank_that_is_allowed_to_be) {
  MpiCommunicator hasty(MPI_COMM_WORLD, {.timeout = milliseconds(400)});
  contract::late_rank_is_awaited(hasty);
}

TEST(MpiCommunicator, names_a_missing_rank) {
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
      +[](Communicator& c) {  // too long to be buffered on its way
        std::vector<contract::Message> all(static_cast<std::size_t>(c.size()), contract::Message(3'000'000));
        c.all_gather("lonely", contract::Message(3'000'000), contract::views_of(all));
      },
  };
  MpiCommunicator world(MPI_COMM_WORLD, kPatient);
  for (const auto collective : collectives) {
    MpiCommunicator hasty(MPI_COMM_WORLD, {.timeout = milliseconds(400)});
    contract::missing_rank_is_named(hasty, collective);
    world.barrier("everybody is back");
  }
}

TEST(MpiCommunicator, refuses_work_after_a_failure) {
  MpiCommunicator world(MPI_COMM_WORLD, kPatient);
  if (world.size() == 1) GTEST_SKIP() << "nobody to wait for";
  MpiCommunicator hasty(MPI_COMM_WORLD, {.timeout = milliseconds(200)});
  if (world.rank() == 0) {
    EXPECT_THROW(hasty.barrier("first"), Error);
    try {
      hasty.gather_sizes("second", 0);
      ADD_FAILURE() << "a late message of the first collective could have been taken";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("refused after an earlier failure"), std::string::npos) << error.what();
    }
  }
  world.barrier("together again");
}

TEST(MpiCommunicator, notices_sizes_that_disagree) {
  MpiCommunicator world(MPI_COMM_WORLD, kPatient);
  if (world.size() == 1) GTEST_SKIP() << "nobody to disagree with";
  MpiCommunicator communicator(MPI_COMM_WORLD, {.timeout = seconds(5)});
  const std::size_t mine = communicator.rank() == 0 ? 8 : 16;
  std::vector<contract::Message> all(static_cast<std::size_t>(communicator.size()), contract::Message(mine));
  EXPECT_THROW(communicator.all_gather("disagree", contract::Message(mine), contract::views_of(all)), Error);
  world.barrier("done");
}

TEST(PeerRequests, name_every_peer_that_is_late_and_only_those) {
  MpiCommunicator world(MPI_COMM_WORLD, kPatient);
  if (world.size() < 3) GTEST_SKIP() << "needs a late peer and one in time";
  const auto wire = world.duplicate("private messages");
  std::byte in_time{0};
  std::byte late{0};
  PeerRequests requests(world.rank());
  if (world.rank() == 0) {
    requests.receive(wire->get(), 1, 5, Bytes(&in_time, 1));
    requests.receive(wire->get(), 2, 5, Bytes(&late, 1));
    try {
      requests.wait("two messages", milliseconds(200));
      ADD_FAILURE() << "rank 2 sent nothing";
    } catch (const Error& error) {
      EXPECT_EQ(without_seconds(error.what()), "rank 0: stage 'two messages': waited ... s for rank 2");
    }
    EXPECT_EQ(in_time, std::byte{7});
    wire->abandon();
  } else if (world.rank() == 1) {
    const std::byte seven{7};
    requests.send(wire->get(), 0, 5, ConstBytes(&seven, 1));
    requests.wait("one message", seconds(10));
  }
  world.barrier("done");
}

}  // namespace
}  // namespace ringmark::comm
