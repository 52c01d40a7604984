#include "comm/cuda/choose_device.h"

#include <gtest/gtest.h>

#include "comm/thread_ranks.h"
#include "core/error.h"

namespace ringmark::comm::cuda {
namespace {

// With a GPU or without one: all ranks get one, or all are refused with exit 3.
TEST(ChooseDevice, ends_alike_on_every_rank) {
  run_thread_ranks(3, [](Communicator& communicator) {
    std::int64_t refused = 0;
    try {
      const ChosenDevice chosen = choose_device(communicator, true);
      EXPECT_GE(chosen.device, 0);
      EXPECT_GE(chosen.sharers, 1);
      EXPECT_NE(chosen.why.find("GPU-"), std::string::npos) << chosen.why;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kEnvironment);
      EXPECT_NE(std::string(error.what()).find("rank 0"), std::string::npos) << error.what();
      refused = 1;
    }
    for (const std::int64_t other : communicator.gather_sizes("compare", refused)) EXPECT_EQ(other, refused);
  });
}

}  // namespace
}  // namespace ringmark::comm::cuda
