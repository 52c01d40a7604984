#include <gtest/gtest.h>

#include "comm/thread_ranks.h"
#include "kernels/cpu/isa.h"
#include "tests/runtime/prefill_checks.h"

namespace ringmark::test {
namespace {

// The same bits from the other instruction set.
TEST(PrefillIsa, golden_layer_on_the_baseline_instruction_set) {
  const GoldenLayer golden = load_golden(2048);
  const kernels::cpu::Isa before = kernels::cpu::active_isa();
  kernels::cpu::force_isa(kernels::cpu::Isa::kAvx2);
  comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
    EXPECT_EQ(check_golden(communicator, golden, Route{}), kGoldenDigest2048);
  });
  kernels::cpu::force_isa(before);
}

}  // namespace
}  // namespace ringmark::test
