#include "cluster/doctor/judge.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace ringmark::cluster {
namespace {

constexpr const char* kFirst = "GPU-aa000000-0000-0000-0000-000000000000";
constexpr const char* kSecond = "GPU-ab000000-0000-0000-0000-000000000001";

// A rank with nothing wrong about it, on a host of four processors.
RankFacts healthy(std::string host = "n1") {
  RankFacts facts;
  facts.host = std::move(host);
  facts.versions = {{"ringmark", "0.1.0"}, {"binary", "0123"}, {"MPI", "Open MPI v4.1.4"}, {"UCX", "1.13.1"}};
  facts.cpus = 4;
  facts.bound_cpus = {0, 1};
  facts.threads = 2;
  facts.locked_memory = RLIM_INFINITY;
  facts.open_files = 65536;
  facts.core_bytes = RLIM_INFINITY;
  facts.shared_bytes = facts.shared_free = std::int64_t{8} << 30;
  facts.topology = "1 package";
  facts.visible_devices = "unset";
  return facts;
}

std::vector<RankFacts> two() {
  std::vector<RankFacts> ranks(2, healthy());
  ranks[1].bound_cpus = {2, 3};
  return ranks;
}

// One finding above INFO, of this level, with these words.
void expect_only(const Findings& findings, Level level, std::initializer_list<const char*> words) {
  int found = 0;
  for (const Finding& finding : findings) {
    if (finding.level == Level::kPass || finding.level == Level::kInfo) continue;
    ++found;
    EXPECT_EQ(finding.level, level) << finding.found;
    EXPECT_NE(finding.fix, "") << finding.found;
    for (const char* word : words) {
      EXPECT_NE((finding.found + " " + finding.fix).find(word), std::string::npos)
          << word << " not in " << finding.found;
    }
  }
  EXPECT_EQ(found, 1);
}

void expect_fine(const Findings& findings) {
  ASSERT_FALSE(findings.empty());
  for (const Finding& finding : findings) EXPECT_LE(finding.level, Level::kInfo) << finding.found;
}

TEST(Judge, finds_nothing_wrong_with_healthy_ranks) {
  const auto ranks = two();
  const DoctorOptions options;
  expect_fine(judge_hosts(ranks));
  expect_fine(judge_versions(ranks, options));
  expect_fine(judge_processors(ranks));
  expect_fine(judge_limits(ranks, options));
  expect_fine(judge_gpus(ranks, options));
  expect_fine(judge_settings(ranks, true));
}

TEST(Judge, names_the_ranks_of_another_version) {
  std::vector<RankFacts> ranks(5, healthy());
  for (const int rank : {1, 2, 4}) ranks[static_cast<std::size_t>(rank)].versions["ringmark"] = "0.2.0";
  expect_only(judge_versions(ranks, {}), Level::kFail,
              {"ringmark differs: 0.1.0 on ranks 0,3, 0.2.0 on ranks 1-2,4", "same file"});
  ranks.assign(2, healthy());
  ranks[1].versions.erase("UCX");
  expect_only(judge_versions(ranks, {}), Level::kWarn, {"UCX differs: none on rank 1, 1.13.1 on rank 0"});
  DoctorOptions by_ucx;
  by_ucx.transport = TransportName::kUcx;
  expect_only(judge_versions(ranks, by_ucx), Level::kFail, {"UCX differs"});
}

TEST(Judge, counts_threads_against_processors) {
  auto ranks = two();
  ranks[1].bound_cpus = {1, 2};  // one processor for both
  expect_only(judge_processors(ranks), Level::kWarn, {"4 threads in all, 3 processors: oversubscribed"});
  std::vector<RankFacts> alone(1, healthy());
  alone[0].bound_cpus = {3};
  alone[0].threads = 4;
  const Findings findings = judge_processors(alone);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].found, "rank 0: 4 threads on 1 of 4 processors");
  EXPECT_NE(findings[0].fix.find("--cpus-per-task"), std::string::npos);
}

TEST(Judge, knows_limits_that_matter) {
  auto ranks = two();
  ranks[0].locked_memory = 64 << 10;
  expect_fine(judge_limits(ranks, {}));  // nothing pins memory here
  DoctorOptions by_ucx;
  by_ucx.transport = TransportName::kUcx;
  expect_only(judge_limits(ranks, by_ucx), Level::kWarn, {"64.0 KiB of locked memory", "LimitMEMLOCK"});
  ranks = two();
  ranks[0].open_files = 263;
  expect_only(judge_limits(ranks, {}), Level::kWarn, {"263 open files", "may need 264", "ulimit -n"});
  ranks[0].open_files = 264;
  expect_fine(judge_limits(ranks, {}));
}

TEST(Judge, knows_a_small_or_littered_dev_shm) {
  auto ranks = two();
  for (RankFacts& facts : ranks) facts.shared_free = (8 << 20) - 1;
  expect_only(judge_limits(ranks, {}), Level::kWarn, {"MPI alone takes 8.0 MiB", "--shm-size"});
  ranks = two();
  for (RankFacts& facts : ranks) facts.shared_bytes = facts.shared_free = 64 << 20;
  expect_only(judge_limits(ranks, {}), Level::kWarn, {"by request instead of rma"});
  ranks = two();
  ranks[0].leftovers = {"/dev/shm/vader_segment.n1.0.1"};
  expect_only(judge_limits(ranks, {}), Level::kWarn, {"a file of dead jobs", "rm /dev/shm/vader_segment.n1.0.1"});
}

TEST(Judge, refuses_gpus_as_the_runtime_does) {
  auto ranks = two();
  for (RankFacts& facts : ranks) facts.gpus = {kFirst};
  expect_fine(judge_gpus(ranks, {}));  // --backend cpu
  DoctorOptions options;
  options.gpus = true;
  expect_only(judge_gpus(ranks, options), Level::kFail, {"ranks 0 and 1 would share", kFirst, "--gpus-per-task=1"});
  ranks[0].mpirun_in_slurm = true;
  expect_only(judge_gpus(ranks, options), Level::kFail, {"instead of mpirun"});
  options.share_gpu = true;
  expect_fine(judge_gpus(ranks, options));
  options.share_gpu = false;
  ranks = two();
  ranks[0].gpus = {kFirst};
  ranks[1].gpu_trouble = "CUDA_VISIBLE_DEVICES is empty";
  ranks[1].visible_devices = "";
  expect_only(judge_gpus(ranks, options), Level::kFail,
              {"rank 1 on host n1 sees no GPU", "unset CUDA_VISIBLE_DEVICES"});
  for (RankFacts& facts : ranks) facts.gpus = {kFirst, kSecond};
  const Findings findings = judge_gpus(ranks, options);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_NE(findings[1].found.find(std::string("rank 0 on n1 takes GPU 0 of 2")), std::string::npos);
  EXPECT_NE(findings[2].found.find(std::string("rank 1 on n1 takes GPU 1 of 2")), std::string::npos);
}

TEST(Judge, fails_by_a_setting_only_where_the_job_has_not_started) {
  auto ranks = two();
  ranks[1].settings = {{"OMPI_MCA_btl", "OMPI_MCA_btl=^tcp: nothing reaches another host"}};
  expect_only(judge_settings(ranks, false), Level::kFail,
              {"nothing reaches another host (on n1)", "unset OMPI_MCA_btl"});
  expect_only(judge_settings(ranks, true), Level::kWarn, {"unset OMPI_MCA_btl"});
  ranks[1].settings = {{"NCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME=ib9: no such interface"}};
  expect_only(judge_settings(ranks, true), Level::kFail, {"ib9"});
}

TEST(Judge, writes_ranges) {
  EXPECT_EQ(ranges_text(std::vector{0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(ranges_text(std::vector{5}), "5");
  EXPECT_EQ(ranges_text(std::vector{1, 3, 4}), "1,3-4");
}

TEST(RankFacts, travel_as_text) {
  RankFacts facts = healthy();
  facts.interfaces = {{"eth0", {"10.0.0.1"}, true, false}};
  facts.settings = {{"UCX_TLS", "UCX_TLS=\xff: not text"}};
  const RankFacts copy = from_text(to_text(facts));
  EXPECT_EQ(copy.versions, facts.versions);
  EXPECT_EQ(copy.bound_cpus, facts.bound_cpus);
  EXPECT_EQ(copy.locked_memory, RLIM_INFINITY);
  ASSERT_EQ(copy.interfaces.size(), 1u);
  EXPECT_EQ(copy.interfaces[0].addresses, facts.interfaces[0].addresses);
  EXPECT_EQ(copy.settings[0].name, "UCX_TLS");
}

}  // namespace
}  // namespace ringmark::cluster
