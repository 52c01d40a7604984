#include "comm/cuda/copy_lists.h"

#include <algorithm>
#include <bit>

namespace ringmark::comm::cuda {
namespace {

constexpr std::int64_t kSmallestList = 1024;
// From here on a copy engine keeps a link full alone, and the multiprocessors stay free.
constexpr std::int64_t kLongCopy = std::int64_t{4} << 20;
// Pieces of the first kernel; each one after it takes as many as all before. Writing the list costs 2 to 4 ns a piece,
// moving a full one 8 ns in this GPU's memory.
constexpr std::int64_t kFirstKernel = 2048;

bool for_copy_engine(const Copy& copy, Reach reach) { return reach == Reach::kPeers && copy.bytes >= kLongCopy; }

std::int64_t pieces_of(const Copy& copy) { return (copy.bytes + kCopyPerWarp - 1) / kCopyPerWarp; }

Copy* write_pieces(const Copy& copy, Copy* to) {
  for (std::int64_t at = 0; at < copy.bytes; at += kCopyPerWarp) {
    *to++ = {copy.source + at, copy.destination + at, std::min(kCopyPerWarp, copy.bytes - at)};
  }
  return to;
}

}  // namespace

CopyList::CopyList(std::int64_t capacity) : device_(capacity) {
  void* memory = nullptr;
  ringmark::cuda::check(cudaHostAlloc(&memory, static_cast<std::size_t>(device_.bytes()), cudaHostAllocDefault),
                        "get pinned memory for a list of reads");
  pinned_ = static_cast<Copy*>(memory);
}

CopyList::~CopyList() { (void)cudaFreeHost(pinned_); }

void CopyList::run(std::int64_t first, std::int64_t end, Reach reach, cudaStream_t stream) {
  device_.upload(pinned_ + first, end - first, stream, first);
  gather_reads(device_.data() + first, end - first, reach, stream);
}

void CopyLists::GiveBack::operator()(CopyList* list) const {
  const std::lock_guard lock(pool->mutex);
  pool->free.emplace_back(list);
}

CopyLists::Lease CopyLists::enqueue(std::span<const Copy> copies, Reach reach, cudaStream_t stream) {
  std::int64_t pieces = 0;
  for (const Copy& copy : copies) pieces += for_copy_engine(copy, reach) ? 0 : pieces_of(copy);
  Lease list = pieces > 0 ? take(pieces) : Lease{};
  std::int64_t written = 0;
  std::int64_t enqueued = 0;
  for (const Copy& copy : copies) {
    if (copy.bytes == 0) continue;
    if (for_copy_engine(copy, reach)) {
      ringmark::cuda::check(cudaMemcpyAsync(copy.destination, copy.source, static_cast<std::size_t>(copy.bytes),
                                            cudaMemcpyDefault, stream),
                            "copy from a peer GPU");
      continue;
    }
    written = write_pieces(copy, list->pinned() + written) - list->pinned();
    if (written - enqueued < std::max(kFirstKernel, enqueued)) continue;
    list->run(enqueued, written, reach, stream);
    enqueued = written;
  }
  if (written > enqueued) list->run(enqueued, written, reach, stream);
  return list;
}

CopyLists::Lease CopyLists::take(std::int64_t count) {
  {
    const std::lock_guard lock(pool_->mutex);
    const auto large_enough = std::ranges::find_if(pool_->free, [&](const auto& l) { return l->capacity() >= count; });
    if (large_enough != pool_->free.end()) {
      std::swap(*large_enough, pool_->free.back());
      CopyList* list = pool_->free.back().release();
      pool_->free.pop_back();
      return Lease(list, GiveBack{pool_});
    }
  }
  const auto capacity = std::bit_ceil(static_cast<std::uint64_t>(std::max(count, kSmallestList)));
  return Lease(new CopyList(static_cast<std::int64_t>(capacity)), GiveBack{pool_});
}

}  // namespace ringmark::comm::cuda
