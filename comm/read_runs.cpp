#include "comm/read_runs.h"

namespace ringmark::comm {
namespace {

bool continues(const ReadRun& run, const RemoteRead& read) {
  const auto length = static_cast<std::int64_t>(run.destination.size());
  return run.region == read.region && run.offset + length == read.offset &&
         run.destination.data() + length == read.destination.data();
}

}  // namespace

std::vector<std::vector<ReadRun>> merge_reads(std::span<const RemoteRead> reads, int ranks) {
  std::vector<std::vector<ReadRun>> runs(static_cast<std::size_t>(ranks));
  for (const RemoteRead& read : reads) {
    if (read.destination.empty()) continue;
    std::vector<ReadRun>& of_peer = runs[static_cast<std::size_t>(read.peer)];
    if (!of_peer.empty() && continues(of_peer.back(), read)) {
      Bytes& whole = of_peer.back().destination;
      whole = Bytes(whole.data(), whole.size() + read.destination.size());
    } else {
      of_peer.push_back({read.region, read.offset, read.destination});
    }
  }
  return runs;
}

}  // namespace ringmark::comm
