// What a build without CUDA says when a GPU is asked for.
#pragma once

#include "core/error.h"

namespace ringmark::cluster {

[[noreturn]] inline void fail_without_cuda() {
  fail_environment("backend = cuda: this build has no CUDA; configure with -DRINGMARK_CUDA=ON where nvcc is found");
}

}  // namespace ringmark::cluster
