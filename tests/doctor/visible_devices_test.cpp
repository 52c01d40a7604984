#include "cluster/doctor/visible_devices.h"

#include <gtest/gtest.h>

namespace ringmark::cluster {
namespace {

using Numbers = std::vector<std::size_t>;

const std::vector<std::string> kGpus = {"GPU-aa000000-0000-0000-0000-000000000000",
                                        "GPU-ab000000-0000-0000-0000-000000000001",
                                        "GPU-bb000000-0000-0000-0000-000000000002"};

Numbers shown(const char* variable) { return visible_devices(kGpus, variable).numbers; }

TEST(VisibleDevices, shows_all_when_unset_and_none_when_empty) {
  EXPECT_EQ(shown(nullptr), (Numbers{0, 1, 2}));
  EXPECT_EQ(shown(""), Numbers{});
  EXPECT_EQ(visible_devices(kGpus, "").trouble, "CUDA_VISIBLE_DEVICES is empty");
}

TEST(VisibleDevices, keeps_the_order_of_the_variable) {
  EXPECT_EQ(shown("2,0"), (Numbers{2, 0}));
  EXPECT_EQ(shown("GPU-bb,GPU-aa000000-0000-0000-0000-000000000000"), (Numbers{2, 0}));
}

TEST(VisibleDevices, ends_at_the_first_entry_that_is_none) {
  EXPECT_EQ(shown("0,-1,2"), Numbers{0});
  EXPECT_EQ(shown("1,7,2"), Numbers{1});
  EXPECT_EQ(shown("NoDevFiles"), Numbers{});
  EXPECT_EQ(shown("GPU-a"), Numbers{}) << "the beginning of two";
  EXPECT_TRUE(visible_devices(std::span(kGpus).first(1), "GPU-").numbers.empty());
  EXPECT_EQ(visible_devices(kGpus, "7").trouble, "CUDA_VISIBLE_DEVICES=7: '7' is none of the 3 GPUs of the host");
}

TEST(VisibleDevices, shows_none_when_one_is_named_twice) { EXPECT_EQ(shown("0,1,0"), Numbers{}); }

TEST(VisibleDevices, reads_a_uuid_as_it_is_written) {
  const std::string text = "GPU-8f6bb1a5-1f1e-2a3c-7e0c-6d6d36bd8e4c";
  EXPECT_EQ(comm::text_of(uuid_of(text)), text);
}

}  // namespace
}  // namespace ringmark::cluster
