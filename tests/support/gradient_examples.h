// Layers whose gradients were worked out by hand: one head of dimension 1, scale 1, fp32.
#pragma once

#include <string>
#include <vector>

#include "kernels/reference/backward.h"
#include "tests/support/test_layer.h"

namespace ringmark::test {

struct GradientExample {
  std::string name;
  TestLayer layer;
  std::vector<float> out_gradient;  // [N]
  kernels::reference::Gradients want;
};
std::vector<GradientExample> gradient_examples();

}  // namespace ringmark::test
