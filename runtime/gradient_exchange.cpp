#include "runtime/gradient_exchange.h"

#include <algorithm>

namespace ringmark::runtime {
namespace {

constexpr std::byte kHere{1};

std::int64_t count(std::span<const std::byte> marks) { return std::count(marks.begin(), marks.end(), kHere); }

}  // namespace

GradientExchange::GradientExchange(const partition::Layout& layout, RankId rank, Range<ChunkId> stretch,
                                   std::int64_t kv_heads, std::span<const char> reads, kernels::GradientTable& table)
    : layout_(layout), rank_(rank), stretch_(stretch), kv_heads_(kv_heads), table_(table) {
  const std::int64_t floats = table.shape().floats();
  for (int owner = 0; owner < layout.ranks(); ++owner) {
    std::vector<std::byte>& marks = marks_.emplace_back();
    for (const ChunkId chunk : chunks_of(RankId(owner))) {
      for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        const bool here =
            RankId(owner) == rank || reads[static_cast<std::size_t>((chunk - stretch.begin) * kv_heads + kv_head)];
        marks.push_back(here ? kHere : std::byte{0});
      }
    }
    std::vector<float>& records = records_.emplace_back(static_cast<std::size_t>(count(marks) * floats), 0.0f);
    float* next = records.data();
    auto mark = marks.begin();
    for (const ChunkId chunk : chunks_of(RankId(owner))) {
      for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        if (*mark++ != kHere) continue;
        table.set(chunk, kv_head, next);
        next += floats;
      }
    }
  }
}

GradientExchange::~GradientExchange() {
  for (ChunkId chunk = stretch_.begin; chunk < stretch_.end; ++chunk) {
    for (std::int64_t kv_head = 0; kv_head < kv_heads_; ++kv_head) table_.set(chunk, kv_head, nullptr);
  }
}

std::span<const ChunkId> GradientExchange::chunks_of(RankId rank) const {
  const std::vector<ChunkId>& chunks = layout_.chunks_of(rank);
  const auto begin = std::lower_bound(chunks.begin(), chunks.end(), stretch_.begin);
  return {begin, std::lower_bound(begin, chunks.end(), stretch_.end)};
}

// Which of the own blocks each rank has a record of.
std::vector<std::vector<std::byte>> GradientExchange::exchange_marks(comm::Communicator& communicator,
                                                                     const Meeting& meeting) const {
  const auto own = static_cast<std::size_t>(std::ssize(own_chunks()) * kv_heads_);
  std::vector<std::vector<std::byte>> theirs(marks_.size(), std::vector<std::byte>(own));
  const std::vector<comm::ConstBytes> send(marks_.begin(), marks_.end());
  const std::vector<comm::Bytes> receive(theirs.begin(), theirs.end());
  communicator.start_all_to_all("mark gradients", send, receive)->wait(meeting.allowance());
  return theirs;
}

std::int64_t GradientExchange::send_home(comm::Communicator& communicator, const Meeting& meeting) {
  if (communicator.size() == 1) return 0;
  const std::vector<std::vector<std::byte>> marks = exchange_marks(communicator, meeting);
  const auto me = static_cast<std::size_t>(rank_.value());
  std::vector<std::vector<float>> received(marks.size());
  std::vector<comm::ConstBytes> send(marks.size());
  std::vector<comm::Bytes> receive(marks.size());
  std::int64_t bytes = 0;
  for (std::size_t rank = 0; rank < marks.size(); ++rank) {
    bytes += rank == me ? 0 : std::ssize(marks[rank]);
    if (rank == me) continue;
    received[rank].resize(static_cast<std::size_t>(count(marks[rank]) * table_.shape().floats()));
    send[rank] = std::as_bytes(std::span(records_[rank]));
    receive[rank] = std::as_writable_bytes(std::span(received[rank]));
    bytes += std::ssize(receive[rank]);
  }
  communicator.start_all_to_all("send gradients home", send, receive)->wait(meeting.allowance());
  received[me] = records_[me];
  add_up(marks, received);
  return bytes;
}

void GradientExchange::add_up(const std::vector<std::vector<std::byte>>& marks,
                              const std::vector<std::vector<float>>& received) {
  const auto floats = static_cast<std::size_t>(table_.shape().floats());
  std::vector<float>& sums = records_[static_cast<std::size_t>(rank_.value())];
  std::fill(sums.begin(), sums.end(), 0.0f);
  for (std::size_t rank = 0; rank < received.size(); ++rank) {
    const float* next = received[rank].data();
    for (std::size_t block = 0; block < marks[rank].size(); ++block) {
      if (marks[rank][block] != kHere) continue;
      float* const sum = sums.data() + block * floats;
      for (std::size_t n = 0; n < floats; ++n) sum[n] += next[n];
      next += floats;
    }
  }
}

}  // namespace ringmark::runtime
