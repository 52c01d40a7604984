// Regions that spill, served by request and reply.
#include <gtest/gtest.h>

#include "comm/mpi_communicator.h"
#include "comm/request_transport.h"
#include "tests/comm/transport_contract.h"
#include "tests/kvstore/temporary_folder.h"

namespace ringmark::comm {
namespace {

TEST(SpilledRegions, serve_the_transport_contract) {
  const test::TemporaryFolder folder;
  MpiCommunicator communicator(MPI_COMM_WORLD, {.timeout = std::chrono::seconds(60)});
  RequestTransport transport(communicator, std::chrono::seconds(60), SpillPolicy{4096, folder.file("")});
  contract::honours_the_contract(communicator, transport);
  contract::impossible_regions_are_refused_on_every_rank(communicator, transport);
  contract::honours_the_contract(communicator, transport);
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace ringmark::comm
