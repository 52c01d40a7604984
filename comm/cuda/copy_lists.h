// The lists that gather kernels read: written into pinned memory, copied up, and kept for reuse, because pinned memory
// is slow to get.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "comm/cuda/copy.h"
#include "comm/cuda/gather_reads.h"
#include "core/cuda/buffer.h"

namespace ringmark::comm::cuda {

class CopyList {
 public:
  explicit CopyList(std::int64_t capacity);
  ~CopyList();
  CopyList(const CopyList&) = delete;
  CopyList& operator=(const CopyList&) = delete;

  std::int64_t capacity() const { return device_.size(); }
  Copy* pinned() const { return pinned_; }
  // Enqueues copies [first, end).
  void run(std::int64_t first, std::int64_t end, Reach reach, cudaStream_t stream);

 private:
  Copy* pinned_ = nullptr;
  ringmark::cuda::Buffer<Copy> device_;
};

class CopyLists {
  struct Pool {
    std::mutex mutex;
    std::vector<std::unique_ptr<CopyList>> free;
  };
  struct GiveBack {
    std::shared_ptr<Pool> pool;
    void operator()(CopyList* list) const;
  };

 public:
  // A list that the GPU may be reading. Ends after its copies have been made; outlives the pool if it must.
  using Lease = std::unique_ptr<CopyList, GiveBack>;

  // Enqueues the copies as few kernels, the first of which starts before a long list has been written; long copies from
  // peers are left to a copy engine. No copy reads what another one writes. The lease is null when no list was needed.
  [[nodiscard]] Lease enqueue(std::span<const Copy> copies, Reach reach, cudaStream_t stream);

 private:
  Lease take(std::int64_t count);

  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
};

}  // namespace ringmark::comm::cuda
