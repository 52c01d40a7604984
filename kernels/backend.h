// Which implementation of the kernels runs.
#pragma once

#include <string_view>

namespace ringmark::kernels {

enum class Backend {
  kCpu,        // fp32, tiled and threaded
  kReference,  // fp64, the plainest reading of the formulas: for checking, slow
  kCuda,       // one GPU a rank
};

constexpr std::string_view name_of(Backend backend) {
  switch (backend) {
    case Backend::kCpu: return "cpu";
    case Backend::kReference: return "reference";
    case Backend::kCuda: return "cuda";
  }
  return "?";
}

}  // namespace ringmark::kernels
