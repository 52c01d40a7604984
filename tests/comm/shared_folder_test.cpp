#include "comm/shared_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

namespace ringmark::comm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJob = "PMIX_NAMESPACE";
constexpr const char* kPlace = "OMPI_MCA_osc_rdma_backing_directory";
constexpr std::chrono::seconds kPatient{20};

class SharedFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    if (access(kSharedMemory, W_OK) != 0) GTEST_SKIP() << "no shared memory here";
    name_job("test");
    unsetenv(kPlace);
  }
  void TearDown() override {
    unsetenv(kJob);
    unsetenv(kPlace);
  }

  static std::string job(const std::string& name) { return fmt::format("{}-{}", name, getpid()); }
  static void name_job(const std::string& name) { setenv(kJob, job(name).c_str(), 1); }
  static fs::path folder_of(const std::string& name) {
    return fmt::format("{}/ringmark-{}-{}", kSharedMemory, geteuid(), job(name));
  }
  // As Open MPI does with a window.
  static void put_file(const fs::path& folder) { std::ofstream(folder / "osc_rdma.host.1") << "window"; }
};

TEST_F(SharedFolderTest, is_where_mpi_is_told_to_go_until_the_last_rank_leaves) {
  std::optional<SharedFolder> first(std::in_place, kPatient);
  std::optional<SharedFolder> second(std::in_place, kPatient);
  EXPECT_STREQ(std::getenv(kPlace), folder_of("test").c_str());
  put_file(folder_of("test"));
  std::thread leaving([&] { first.reset(); });
  EXPECT_TRUE(fs::exists(folder_of("test")));
  second.reset();
  leaving.join();
  EXPECT_FALSE(fs::exists(folder_of("test")));
}

TEST_F(SharedFolderTest, is_waited_for_no_longer_than_asked) {
  const SharedFolder stopped(kPatient);
  { const SharedFolder leaving(std::chrono::milliseconds(50)); }
  EXPECT_TRUE(fs::exists(folder_of("test")));
}

TEST_F(SharedFolderTest, goes_at_once_with_a_rank_that_ends_early) {
  const SharedFolder other_rank(kPatient);
  const SharedFolder folder(kPatient);
  put_file(folder_of("test"));
  SharedFolder::discard();
  EXPECT_FALSE(fs::exists(folder_of("test")));
}

// The lock goes with the process, the folder with the next start of any job.
TEST_F(SharedFolderTest, of_a_killed_job_goes_with_the_next_job) {
  name_job("killed");
  const pid_t rank = fork();
  ASSERT_GE(rank, 0);
  if (rank == 0) {
    setenv(kJob, fmt::format("killed-{}", getppid()).c_str(), 1);
    const SharedFolder folder(kPatient);
    raise(SIGKILL);
  }
  ASSERT_EQ(waitpid(rank, nullptr, 0), rank);
  ASSERT_TRUE(fs::exists(folder_of("killed")));
  put_file(folder_of("killed"));
  name_job("next");
  const SharedFolder next(kPatient);
  EXPECT_FALSE(fs::exists(folder_of("killed")));
  EXPECT_TRUE(fs::exists(folder_of("next")));
}

TEST_F(SharedFolderTest, of_a_job_that_runs_is_left_alone) {
  name_job("running");
  const SharedFolder running(kPatient);
  put_file(folder_of("running"));
  name_job("next");
  { const SharedFolder next(kPatient); }
  EXPECT_TRUE(fs::exists(folder_of("running") / "osc_rdma.host.1"));
}

TEST_F(SharedFolderTest, is_not_used_where_the_user_has_chosen_a_place) {
  setenv(kPlace, "/tmp", 1);
  const SharedFolder folder(kPatient);
  EXPECT_STREQ(std::getenv(kPlace), "/tmp");
}

TEST_F(SharedFolderTest, is_done_without_where_it_cannot_be) {
  unsetenv(kJob);
  { const SharedFolder nameless(kPatient); }
  EXPECT_EQ(std::getenv(kPlace), nullptr);
  name_job("taken");
  std::ofstream(folder_of("taken")) << "a file";
  { const SharedFolder taken(kPatient); }
  EXPECT_EQ(std::getenv(kPlace), nullptr);
  EXPECT_TRUE(fs::remove(folder_of("taken")));
}

}  // namespace
}  // namespace ringmark::comm
