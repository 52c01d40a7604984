// Copies into shared memory and matrices out of it, by the instructions of compute capability 8.0, one function each.
// Source: the PTX ISA (cp.async, ldmatrix).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringmark::kernels::cuda {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts a copy of 16 bytes; both addresses are 16-byte aligned. The source may lie in the memory of a peer.
__device__ inline void copy_async(std::uint32_t shared, const std::byte* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(__cvta_generic_to_global(global))
               : "memory");
}

// Waits for the copies that this thread started.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four matrices of 8 rows of 8 elements of 16 bits. Lane l names row l % 8 of matrix l / 8 and receives, of every
// matrix, elements 2 (l % 4) and the next of row l / 4; transposed: of column l / 4.
__device__ inline void load_matrices(std::uint32_t (&fragment)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(row)
               : "memory");
}
__device__ inline void load_transposed(std::uint32_t (&fragment)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(row)
               : "memory");
}

}  // namespace ringmark::kernels::cuda
