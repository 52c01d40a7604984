// Floats that start at a cache line: a 512-bit load of a panel then never touches two.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace ringmark::kernels::cpu {

template <class T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  CacheLineAllocator() = default;
  template <class U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* floats, std::size_t) { ::operator delete(floats, kLine); }
  template <class U>
  bool operator==(const CacheLineAllocator<U>&) const {
    return true;
  }
};

using AlignedFloats = std::vector<float, CacheLineAllocator<float>>;

}  // namespace ringmark::kernels::cpu
