// Bytes that have come from other ranks, over all communicators and transports of host memory of this process.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringmark::comm {

class ReceivedBytes {
 public:
  static std::int64_t total() { return total_.load(std::memory_order_relaxed); }
  static void add(std::int64_t bytes) { total_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  static inline std::atomic<std::int64_t> total_{0};
};

}  // namespace ringmark::comm
