// ln of a sum of exponentials, in fp64.
#pragma once

#include <vector>

namespace ringmark::kernels::reference {

// -inf without terms, or when all of them are.
double log_sum_exp(const std::vector<double>& terms);

}  // namespace ringmark::kernels::reference
