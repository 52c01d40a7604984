// Hopper's own instructions, one function each: mbarriers, bulk copies, register hand-over. Only sm_90a.
// Source: the PTX ISA (mbarrier, cp.async.bulk, setmaxnreg). The matrix product is in wgmma.cuh.
#pragma once

#include <cstdint>

#include "kernels/cuda/shared_memory.cuh"

namespace ringmark::kernels::cuda::hopper {

// ---- mbarriers: 8 bytes of shared memory each -------------------------------------------------------------------

__device__ inline void init_barrier(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// After the inits, before a __syncthreads(): makes them visible to the copy engine.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// One arrival that also announces the bytes of the copies that complete on the barrier.
__device__ inline void arrive_and_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ inline void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits until the phase of the given parity has completed. A fresh barrier is in phase 0: waiting for parity 1 returns
// at once.
__device__ inline void wait_barrier(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait_again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra wait_done;\n"
      "bra wait_again;\n"
      "wait_done:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// ---- copies -----------------------------------------------------------------------------------------------------

// One thread: `bytes` (a multiple of 16, both addresses 16-byte aligned) from global memory, also a peer's, to shared
// memory; completes on the barrier.
__device__ inline void bulk_copy(void* shared, const void* global, std::uint32_t bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// ---- ordering ---------------------------------------------------------------------------------------------------

// Ordinary writes to shared memory by this thread become visible to wgmma and the copy engine. By every writing
// thread, before the barrier that the readers wait for.
__device__ inline void fence_shared_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int kThreads>
__device__ inline void named_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ inline void named_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
// named_sync that also tells whether some thread said so.
template <int kThreads>
__device__ inline bool named_any(int id, bool own) {
  int any;
  asm volatile(
      "{\n"
      ".reg .pred own, any;\n"
      "setp.ne.b32 own, %3, 0;\n"
      "barrier.cta.red.or.aligned.pred any, %1, %2, own;\n"
      "selp.b32 %0, 1, 0, any;\n"
      "}\n"
      : "=r"(any)
      : "r"(id), "n"(kThreads), "r"(static_cast<int>(own))
      : "memory");
  return any != 0;
}

template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace ringmark::kernels::cuda::hopper
