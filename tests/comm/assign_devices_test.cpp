#include "comm/assign_devices.h"

#include <gtest/gtest.h>

namespace ringmark::comm {
namespace {

Uuid gpu(int number) {
  Uuid uuid{};
  uuid.front() = 0xA0;
  uuid.back() = static_cast<std::uint8_t>(number);
  return uuid;
}

VisibleGpus sees(std::string host, std::initializer_list<int> gpus) {
  VisibleGpus view{.host = std::move(host), .gpus = {}, .trouble = {}};
  for (const int number : gpus) view.gpus.push_back(gpu(number));
  return view;
}

using Devices = std::vector<int>;

void expect_refused(const GpuAssignment& assignment, std::initializer_list<std::string> words) {
  EXPECT_TRUE(assignment.devices.empty());
  EXPECT_EQ(assignment.refusal.find('\n'), std::string::npos);
  for (const std::string& word : words) {
    EXPECT_NE(assignment.refusal.find(word), std::string::npos) << "no '" << word << "' in: " << assignment.refusal;
  }
}

TEST(AssignGpus, gives_the_ranks_of_a_host_one_each) {
  const std::vector<VisibleGpus> ranks(8, sees("n1", {0, 1, 2, 3, 4, 5, 6, 7}));
  const GpuAssignment assignment = assign_gpus(ranks, false);
  EXPECT_EQ(assignment.refusal, "");
  EXPECT_EQ(assignment.devices, (Devices{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(assignment.sharers, std::vector<int>(8, 1));
}

TEST(AssignGpus, leaves_what_is_not_needed) {
  const std::vector<VisibleGpus> ranks(2, sees("n1", {0, 1, 2, 3}));
  EXPECT_EQ(assign_gpus(ranks, false).devices, (Devices{0, 1}));
  EXPECT_EQ(assign_gpus(ranks, true).devices, (Devices{0, 1}));
}

// Slurm --gpus-per-task=1: everybody's GPU is device 0.
TEST(AssignGpus, takes_the_only_one_that_a_rank_sees) {
  const std::vector<VisibleGpus> ranks{sees("n1", {0}), sees("n1", {1}), sees("n1", {2}), sees("n1", {3})};
  EXPECT_EQ(assign_gpus(ranks, false).devices, (Devices{0, 0, 0, 0}));
}

TEST(AssignGpus, takes_one_of_those_that_only_this_rank_sees) {
  const std::vector<VisibleGpus> ranks{sees("n1", {0, 1}), sees("n1", {2, 3}), sees("n2", {4, 5}), sees("n2", {6, 7})};
  EXPECT_EQ(assign_gpus(ranks, false).devices, (Devices{0, 0, 0, 0}));
}

// Ranks dealt out over hosts in turn: the global rank says nothing about the place on the host, and neither does an
// environment variable that is 0 everywhere.
TEST(AssignGpus, counts_places_by_host) {
  const VisibleGpus first = sees("n1", {0, 1, 2});
  const VisibleGpus second = sees("n2", {10, 11, 12});
  const std::vector<VisibleGpus> ranks{first, second, first, second, first, second};
  EXPECT_EQ(assign_gpus(ranks, false).devices, (Devices{0, 0, 1, 1, 2, 2}));
}

TEST(AssignGpus, follows_the_order_of_cuda_visible_devices) {
  const std::vector<VisibleGpus> ranks{sees("n1", {3, 2, 1, 0}), sees("n1", {0, 1, 2, 3})};
  EXPECT_EQ(assign_gpus(ranks, false).devices, (Devices{0, 0}));  // GPU 3 and GPU 0
  const std::vector<VisibleGpus> overlapping{sees("n1", {1}), sees("n1", {1, 0})};
  EXPECT_EQ(assign_gpus(overlapping, false).devices, (Devices{0, 1}));  // GPU 1 and GPU 0
}

TEST(AssignGpus, refuses_two_ranks_on_one_gpu) {
  const std::vector<VisibleGpus> ranks(2, sees("n1", {7}));
  expect_refused(assign_gpus(ranks, false), {"ranks 0 and 1", "n1", text_of(gpu(7)), "--share-gpu"});
}

// mpirun inside a --gpus-per-task=1 job: the second host shows one GPU to both of its ranks.
TEST(AssignGpus, refuses_a_duplicate_on_any_host) {
  const std::vector<VisibleGpus> ranks{sees("n1", {0, 1}), sees("n1", {0, 1}), sees("n2", {2}), sees("n2", {2})};
  expect_refused(assign_gpus(ranks, false), {"ranks 2 and 3", "n2", text_of(gpu(2))});
}

// Containers of one machine have names of their own and may still show the same GPU.
TEST(AssignGpus, knows_a_gpu_under_two_host_names) {
  const std::vector<VisibleGpus> ranks{sees("box-a", {5}), sees("box-b", {5})};
  expect_refused(assign_gpus(ranks, false), {"ranks 0 and 1", text_of(gpu(5))});
}

TEST(AssignGpus, refuses_more_ranks_than_gpus) {
  const std::vector<VisibleGpus> ranks(3, sees("n1", {0, 1}));
  expect_refused(assign_gpus(ranks, false), {"ranks 0 and 2", text_of(gpu(0)), "among its 2"});
}

TEST(AssignGpus, shares_evenly_when_allowed) {
  const std::vector<VisibleGpus> ranks(5, sees("n1", {0, 1}));
  const GpuAssignment assignment = assign_gpus(ranks, true);
  EXPECT_EQ(assignment.refusal, "");
  EXPECT_EQ(assignment.devices, (Devices{0, 1, 0, 1, 0}));
  EXPECT_EQ(assignment.sharers, (Devices{3, 2, 3, 2, 3}));
}

TEST(AssignGpus, refuses_a_rank_without_gpu) {
  std::vector<VisibleGpus> ranks{sees("n1", {0}), sees("n2", {})};
  ranks[1].trouble = "no CUDA-capable device is detected";
  for (const bool share : {false, true}) {
    expect_refused(assign_gpus(ranks, share),
                   {"rank 1", "n2", "no CUDA-capable device", "CUDA_VISIBLE_DEVICES", "--backend cpu"});
  }
}

TEST(AssignGpus, writes_uuids_as_nvidia_smi_does) {
  Uuid uuid;
  for (std::size_t i = 0; i < uuid.size(); ++i) uuid[i] = static_cast<std::uint8_t>(i * 16 + 1);
  EXPECT_EQ(text_of(uuid), "GPU-01112131-4151-6171-8191-a1b1c1d1e1f1");
}

}  // namespace
}  // namespace ringmark::comm
