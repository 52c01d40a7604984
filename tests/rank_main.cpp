// main of tests that run under mpirun. Rank 0 reports as usual; the other ranks print only their failures, with their
// number. Every rank exits with the worst verdict. An exception that escapes a test body ends the whole job: the other
// ranks would wait for this one.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>

#include "comm/mpi_communicator.h"
#include "comm/mpi_session.h"
#include "core/error.h"

namespace {

class RankFailures final : public testing::EmptyTestEventListener {
 public:
  explicit RankFailures(int rank) : rank_(rank) {}

 private:
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "[rank %d] %s:%d: %s\n", rank_, result.file_name() == nullptr ? "?" : result.file_name(),
                 result.line_number(), result.message());
  }

  int rank_;
};

void report_failures_only(int rank) {
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  delete listeners.Release(listeners.default_xml_generator());
  listeners.Append(new RankFailures(rank));
}

int run_tests(int rank) {
  if (rank != 0) report_failures_only(rank);
  std::int64_t verdict = RUN_ALL_TESTS();
  ringmark::comm::MpiCommunicator world;
  world.all_reduce_max("collect the verdicts", std::span(&verdict, 1));
  return static_cast<int>(verdict);
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  GTEST_FLAG_SET(catch_exceptions, false);
  try {
    const ringmark::comm::MpiSession session;
    try {
      return run_tests(session.rank());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "[rank %d] %s\n", session.rank(), error.what());
      ringmark::comm::MpiSession::abort(1);
    }
  } catch (const ringmark::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
