#include <gtest/gtest.h>

#include <random>

#include "comm/cuda/choose_device.h"
#include "comm/cuda/choose_device_transport.h"
#include "comm/cuda/gather_reads.h"
#include "comm/cuda/ipc_transport.h"
#include "comm/cuda/local_device_transport.h"
#include "comm/thread_ranks.h"
#include "tests/comm/device_contract.h"
#ifdef RINGMARK_HAS_NCCL
#include "comm/cuda/nccl_transport.h"
#endif

namespace ringmark::comm::cuda {
namespace {

int visible_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (visible_gpus() == 0) GTEST_SKIP() << "no GPU";
  }
};

// Copies of every alignment and of lengths around the words and turns of the kernel, over bytes that a stray write
// would change.
TEST_F(OnGpu, gather_copies_every_alignment) {
  constexpr std::size_t kRoom = 9000;
  std::mt19937 random(3);
  std::vector<std::byte> source(1 << 20);
  contract::fill(source, 0, 0, 0);
  std::vector<std::int64_t> lengths{0, 1, 3, 15, 16, 17, 31, 33, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8200};
  for (int i = 0; i < 200; ++i) lengths.push_back(static_cast<std::int64_t>(random() % 8500));
  ringmark::cuda::Stream stream;
  const auto size = static_cast<std::int64_t>(source.size());
  const auto count = static_cast<std::int64_t>(lengths.size()) * 16;
  ringmark::cuda::Buffer<std::byte> from(size), to(count * static_cast<std::int64_t>(kRoom));
  from.upload(source.data(), size, stream);
  to.fill_bytes(0xFF, stream);
  std::vector<Copy> copies;
  std::vector<std::byte> expected(static_cast<std::size_t>(to.size()), std::byte{0xFF});
  for (const std::int64_t length : lengths) {
    for (std::size_t alignment = 0; alignment < 16; ++alignment) {
      const std::size_t at = copies.size() * kRoom + alignment + 16 * (random() % 4);
      const std::size_t offset = random() % (source.size() - kRoom);
      copies.push_back({from.data() + offset, to.data() + at, length});
      std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(offset), length,
                  expected.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  ringmark::cuda::Buffer<Copy> list(count);
  list.upload(copies.data(), count, stream);
  for (const Reach reach : {Reach::kOwnMemory, Reach::kPeers}) {
    gather_reads(list.data(), count, reach, stream);
    stream.wait();
    const std::vector<std::byte> got = contract::download({to.data(), static_cast<std::size_t>(to.size())});
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], expected[i]) << "byte " << i % kRoom << " of copy " << i / kRoom << ", length "
                                     << copies[i / kRoom].bytes;
    }
    to.fill_bytes(0xFF, stream);
  }
}

class RanksOnGpus : public OnGpu, public testing::WithParamInterface<int> {
 protected:
  // Each thread has its GPU, shared where there are fewer.
  static void run(const std::function<void(Communicator&)>& body) {
    run_thread_ranks(GetParam(), [&](Communicator& communicator) {
      choose_device(communicator, true);
      body(communicator);
    });
  }
};

TEST_P(RanksOnGpus, read_by_the_local_transport) {
  run([](Communicator& communicator) {
    LocalDeviceTransport transport(communicator);
    EXPECT_EQ(transport.name(), "local");
    EXPECT_FALSE(transport.collective_get());
    contract::device_honours_the_contract(communicator, transport);
    contract::reads_are_ordered_by_events(communicator, transport);
    contract::peer_addresses_show_the_regions(communicator, transport, true);
    contract::retired_memory_is_free_again(communicator, transport);
  });
}

TEST_P(RanksOnGpus, are_given_the_local_transport) {
  run([](Communicator& communicator) {
    const ChosenDeviceTransport chosen = choose_device_transport(communicator, DeviceTransportChoice::kAuto);
    EXPECT_EQ(chosen.transport->name(), "local");
    EXPECT_EQ(chosen.why.substr(0, 6), "local:");
  });
}

TEST_P(RanksOnGpus, are_refused_handles_inside_one_process) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank opens no handle";
  run([](Communicator& communicator) {
    try {
      choose_device_transport(communicator, DeviceTransportChoice::kCudaIpc);
      ADD_FAILURE() << "opened a handle where it was made";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kEnvironment);
      EXPECT_NE(std::string(error.what()).find("cuda-ipc"), std::string::npos) << error.what();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, RanksOnGpus, testing::Values(1, 2, 3), testing::PrintToStringParamName());

#ifdef RINGMARK_HAS_NCCL
void check_nccl(Communicator& communicator) {
  const ChosenDeviceTransport chosen = choose_device_transport(communicator, DeviceTransportChoice::kNccl);
  EXPECT_EQ(chosen.transport->name(), "nccl");
  EXPECT_TRUE(chosen.transport->collective_get());
  contract::device_honours_the_contract(communicator, *chosen.transport);
  contract::reads_are_ordered_by_events(communicator, *chosen.transport);
  contract::peer_addresses_show_the_regions(communicator, *chosen.transport, false);
}

TEST_F(OnGpu, one_rank_reads_by_nccl) {
  run_thread_ranks(1, [](Communicator& communicator) {
    choose_device(communicator, false);
    check_nccl(communicator);
  });
}

TEST_F(OnGpu, nccl_refuses_ranks_of_one_process) {
  run_thread_ranks(2, [](Communicator& communicator) {
    choose_device(communicator, true);
    EXPECT_THROW(choose_device_transport(communicator, DeviceTransportChoice::kNccl), Error);
  });
}
#endif

}  // namespace
}  // namespace ringmark::comm::cuda
