// CUDA calls end in our errors. Only CUDA builds include this folder.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "core/error.h"

namespace ringmark::cuda {

// `what` says what was tried, in words. Memory, a missing device or driver are the environment's fault (exit 3); the
// rest is ours.
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  const std::string text = std::string(what) + ": " + cudaGetErrorString(status);
  switch (status) {
    case cudaErrorMemoryAllocation:
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady: fail_environment(text);
    default: throw Error(ExitCode::kInternal, text);
  }
}

// After a kernel launch.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

}  // namespace ringmark::cuda
