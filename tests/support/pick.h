// One of a list, for random layers.
#pragma once

#include <initializer_list>
#include <random>

namespace ringmark::test {

template <class T>
T pick(std::mt19937_64& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

}  // namespace ringmark::test
