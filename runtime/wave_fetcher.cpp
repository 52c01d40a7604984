#include "runtime/wave_fetcher.h"

namespace ringmark::runtime {

WaveFetcher::WaveFetcher(comm::BlockTransport& transport, int region, const FetchPlan& plan, comm::Bytes arena,
                         kernels::BlockTable& table)
    : transport_(transport),
      region_(region),
      plan_(plan),
      table_(table),
      arena_(arena),
      resident_(static_cast<std::size_t>(plan.slots), BlockId{ChunkId(-1), 0}) {}

WaveFetcher::~WaveFetcher() {
  pending_.reset();
  for (std::int64_t slot = 0; slot < plan_.slots; ++slot) forget(slot);
}

void WaveFetcher::forget(std::int64_t slot) {
  BlockId& block = resident_[static_cast<std::size_t>(slot)];
  if (block.chunk.value() >= 0) table_.set(block.chunk, block.kv_head, nullptr);
  block.chunk = ChunkId(-1);
}

std::span<const FetchRun> WaveFetcher::runs_of(std::size_t wave) const {
  if (wave >= plan_.waves.size()) return {};
  return plan_.waves[wave].runs;
}

void WaveFetcher::start(std::size_t wave) {
  const std::int64_t block_bytes = table_.shape().bytes();
  std::vector<comm::RemoteRead> reads;
  for (const FetchRun& run : runs_of(wave)) {
    const auto length = static_cast<std::int64_t>(run.blocks.size());
    for (std::int64_t n = 0; n < length; ++n) forget(run.slot + n);
    reads.push_back({static_cast<int>(run.owner.value()), region_, run.offset,
                     arena_.subspan(static_cast<std::size_t>(run.slot * block_bytes),
                                    static_cast<std::size_t>(length * block_bytes))});
  }
  in_flight_ = wave;
  pending_ = transport_.get(reads);
}

void WaveFetcher::wait() {
  pending_->wait();
  pending_.reset();
  for (const FetchRun& run : runs_of(in_flight_)) {
    for (std::size_t n = 0; n < run.blocks.size(); ++n) {
      const std::int64_t slot = run.slot + static_cast<std::int64_t>(n);
      resident_[static_cast<std::size_t>(slot)] = run.blocks[n];
      table_.set(run.blocks[n].chunk, run.blocks[n].kv_head, arena_.data() + slot * table_.shape().bytes());
    }
  }
}

}  // namespace ringmark::runtime
