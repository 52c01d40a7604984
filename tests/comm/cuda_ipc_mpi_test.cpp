// Processes that share one GPU, or have one each: under mpirun.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <thread>

#include "comm/cuda/choose_device.h"
#include "comm/cuda/choose_device_transport.h"
#include "comm/cuda/ipc_transport.h"
#include "comm/mpi_communicator.h"
#include "tests/comm/device_contract.h"
#ifdef RINGMARK_HAS_NCCL
#include "comm/cuda/nccl_transport.h"
#endif

namespace ringmark::comm::cuda {
namespace {

using std::chrono::seconds;

class Processes : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const bool has_gpu = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
    if (!has_gpu) (void)cudaGetLastError();
    std::int64_t without = has_gpu ? 0 : 1;
    communicator_.all_reduce_max("look for GPUs", std::span(&without, 1));
    if (without != 0) GTEST_SKIP() << "no GPU";
    choose_device(communicator_, true);
    const std::vector<Uuid> gpus = gather_current_gpus(communicator_);
    shared_ = std::set<Uuid>(gpus.begin(), gpus.end()).size() < gpus.size();
  }

  MpiCommunicator communicator_{MPI_COMM_WORLD, {.timeout = seconds(60)}};
  bool shared_ = false;  // some GPU has two ranks
};

TEST_F(Processes, read_by_cuda_ipc) {
  const ChosenDeviceTransport chosen = choose_device_transport(communicator_, DeviceTransportChoice::kCudaIpc);
  EXPECT_EQ(chosen.transport->name(), "cuda-ipc");
  EXPECT_FALSE(chosen.transport->collective_get());
  if (communicator_.rank() == 0) RecordProperty("why", chosen.why);
  contract::device_honours_the_contract(communicator_, *chosen.transport);
  contract::reads_are_ordered_by_events(communicator_, *chosen.transport);
  contract::peer_addresses_show_the_regions(communicator_, *chosen.transport, true);
  contract::retired_memory_is_free_again(communicator_, *chosen.transport);
}

TEST_F(Processes, are_given_cuda_ipc) {
  const ChosenDeviceTransport chosen = choose_device_transport(communicator_, DeviceTransportChoice::kAuto);
  EXPECT_EQ(chosen.transport->name(), communicator_.size() == 1 ? "local" : "cuda-ipc") << chosen.why;
}

// Regions stay readable while the owner's process does nothing at all.
TEST_F(Processes, read_from_a_sleeping_owner) {
  IpcTransport transport(communicator_);
  contract::fill_device(transport.expose(300'000), communicator_.rank(), 0, 0);
  transport.publish();
  const auto begin = std::chrono::steady_clock::now();
  if (communicator_.rank() > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  } else {
    for (int peer = 0; peer < communicator_.size(); ++peer) {
      ringmark::cuda::Buffer<std::byte> here(300'000);
      const RemoteRead read{peer, 0, 0, {here.data(), 300'000}};
      transport.get(std::span(&read, 1))->wait();
      contract::expect_region_content({here.data(), 300'000}, peer, 0, 0);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(300));
  }
  transport.retire();
}

// Every GPU seen by one rank alone, as device 0: choose_device must not be fooled, and a GPU for two is refused.
TEST_F(Processes, know_when_they_share_a_gpu) {
  if (!shared_) GTEST_SKIP() << "a GPU each";
  try {
    choose_device(communicator_, false);
    ADD_FAILURE() << "shared without leave";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("--share-gpu"), std::string::npos) << error.what();
  }
}

#ifdef RINGMARK_HAS_NCCL
// NCCL takes processes for hosts of their own, and so two of them on one GPU, when they say so before its first call.
class ProcessesWithNccl : public Processes {
 protected:
  void SetUp() override {
    Processes::SetUp();
    if (shared_) setenv("NCCL_HOSTID", ("host" + std::to_string(communicator_.rank())).c_str(), 1);
  }
};

TEST_F(ProcessesWithNccl, read_by_nccl) {
  NcclTransport transport(communicator_);
  contract::device_honours_the_contract(communicator_, transport);
  contract::reads_are_ordered_by_events(communicator_, transport);
  contract::peer_addresses_show_the_regions(communicator_, transport, false);
}

TEST_F(ProcessesWithNccl, read_in_many_rounds_when_staging_is_small) {
  NcclTransport transport(communicator_, 4096 * communicator_.size());
  contract::HostView view(transport);
  contract::honours_the_contract(communicator_, view);
}

TEST_F(ProcessesWithNccl, gather_device_memory_of_unequal_sizes) {
  NcclCommunicator nccl(communicator_);
  const auto bytes_of = [](int rank) { return std::int64_t{70'001} * rank; };  // rank 0 brings nothing
  const ringmark::cuda::Stream stream;
  const ringmark::cuda::Buffer<std::byte> mine(bytes_of(communicator_.rank()));
  contract::fill_device({mine.data(), static_cast<std::size_t>(mine.size())}, communicator_.rank(), 0, 0);
  std::vector<ringmark::cuda::Buffer<std::byte>> buffers;
  std::vector<Bytes> all;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    buffers.emplace_back(bytes_of(rank));
    all.emplace_back(buffers.back().data(), static_cast<std::size_t>(bytes_of(rank)));
  }
  nccl.gather_device("gather", {mine.data(), static_cast<std::size_t>(mine.size())}, all, stream)->wait();
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    contract::expect_region_content(all[static_cast<std::size_t>(rank)], rank, 0, 0);
  }
}

TEST_F(ProcessesWithNccl, are_refused_two_on_one_gpu) {
  if (!shared_) GTEST_SKIP() << "a GPU each";
  EXPECT_THROW(choose_device_transport(communicator_, DeviceTransportChoice::kNccl), Error);
}

// The last rank never sends: the others end with its name, and so does whoever uses the transport after that.
TEST_F(ProcessesWithNccl, end_when_a_rank_sends_nothing) {
  if (communicator_.size() == 1) GTEST_SKIP() << "nobody to wait for";
  MpiCommunicator hasty(MPI_COMM_WORLD, {.timeout = seconds(6)});
  const int missing = communicator_.size() - 1;
  {
    NcclCommunicator nccl(hasty);
    const ringmark::cuda::Stream stream;
    const ringmark::cuda::Buffer<std::byte> mine(1 << 20), theirs(1 << 20);
    const Bytes all_to_here(theirs.data(), std::size_t{1} << 20);
    nccl.gather_device("warm up", {mine.data(), all_to_here.size()},
                       std::vector<Bytes>(static_cast<std::size_t>(communicator_.size()), all_to_here), stream)
        ->wait();
    if (communicator_.rank() != missing) {
      const Incoming message{missing, all_to_here};
      for (int repeat = 0; repeat < 2; ++repeat) {
        try {
          nccl.exchange("lonely", {}, std::span(&message, 1), stream);
          nccl.pending("lonely", stream, {}, {missing})->wait();
          ADD_FAILURE() << "received what nobody sent";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::kPeer) << error.what();
          EXPECT_NE(std::string(error.what()).find("for rank " + std::to_string(missing)), std::string::npos)
              << error.what();
        }
      }
      stream.wait();  // the kernel that waited has ended
    } else {
      std::this_thread::sleep_for(seconds(8));
    }
  }
  communicator_.barrier("everybody is back");
}
#endif

}  // namespace
}  // namespace ringmark::comm::cuda
