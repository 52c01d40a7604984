// Regions that spill, between processes.
#include <gtest/gtest.h>

#include "comm/mpi_communicator.h"
#include "comm/request_transport.h"
#include "tests/comm/transport_contract.h"
#include "tests/kvstore/temporary_folder.h"
#ifdef RINGMARK_HAS_UCX
#include "comm/ucx_transport.h"
#endif

namespace ringmark::comm {
namespace {

template <class Transport>
class SpilledRegions : public testing::Test {};

#ifdef RINGMARK_HAS_UCX
using Transports = testing::Types<RequestTransport, UcxTransport>;
#else
using Transports = testing::Types<RequestTransport>;
#endif
TYPED_TEST_SUITE(SpilledRegions, Transports, );

TYPED_TEST(SpilledRegions, serve_the_transport_contract) {
  const test::TemporaryFolder folder;
  MpiCommunicator communicator(MPI_COMM_WORLD, {.timeout = std::chrono::seconds(60)});
  TypeParam transport(communicator, std::chrono::seconds(60), SpillPolicy{4096, folder.file("")});
  contract::honours_the_contract(communicator, transport);
  contract::impossible_regions_are_refused_on_every_rank(communicator, transport);
  contract::honours_the_contract(communicator, transport);
  contract::long_reads_arrive_whole(communicator, transport);
  contract::every_fence_shows_what_was_written(communicator, transport);
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace ringmark::comm
