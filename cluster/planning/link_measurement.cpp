#include "cluster/planning/link_measurement.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <vector>

#include "core/error.h"
#include "runtime/agreement.h"

namespace ringmark::cluster {
namespace {

constexpr std::int64_t kRegion = std::int64_t{32} << 20;  // larger than a cache
constexpr std::int64_t kSmall = 64;
constexpr std::size_t kStream = std::size_t{4} << 20;
constexpr std::size_t kBatch = 32;  // reads under way at once
// The quickest counts: a shared machine only ever makes one slower.
constexpr int kReadRounds = 50;
constexpr int kStreamRounds = 8;
constexpr int kNobody = -1;
// All at once below this share of what each has alone: they share something.
constexpr double kShared = 0.9;

struct Pair {
  double latency = 0, request = 0, scattered = 0, streamed = 0;
};

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

class Links {
 public:
  Links(comm::Communicator& ranks, comm::BlockTransport& transport, std::int64_t block)
      : ranks_(ranks),
        transport_(transport),
        block_(std::min(block, kRegion / static_cast<std::int64_t>(kBatch))),
        hosts_(ranks.gather_texts("names of the hosts", host_name())) {}

  LinkMeasurement run() {
    LinkMeasurement measured;
    std::map<std::string, int> on_host;
    for (const std::string& host : hosts_) ++on_host[host];
    measured.hosts = static_cast<int>(on_host.size());
    for (const auto& [host, count] : on_host) measured.ranks_on_host = std::max(measured.ranks_on_host, count);
    transport_.expose(kRegion);
    transport_.publish();
    for (const LinkClass which : {LinkClass::kHost, LinkClass::kFabric}) {
      measured.links[static_cast<std::size_t>(which)] = measure(which, measured.ranks_on_host);
    }
    transport_.retire();
    return measured;
  }

 private:
  bool connects(LinkClass which, int a, int b) const {
    const bool same = hosts_[static_cast<std::size_t>(a)] == hosts_[static_cast<std::size_t>(b)];
    return a != b && same == (which == LinkClass::kHost);
  }

  // The next rank behind `rank` at the other end of such a link.
  int peer_of(LinkClass which, int rank) const {
    for (int step = 1; step < ranks_.size(); ++step) {
      const int other = (rank + step) % ranks_.size();
      if (connects(which, rank, other)) return other;
    }
    return kNobody;
  }

  // Collective.
  LinkRate measure(LinkClass which, int ranks_on_host) {
    std::vector<int> all(static_cast<std::size_t>(ranks_.size())), one(all.size(), kNobody);
    for (int rank = 0; rank < ranks_.size(); ++rank) all[static_cast<std::size_t>(rank)] = peer_of(which, rank);
    const auto reader = std::find_if(all.begin(), all.end(), [](int peer) { return peer != kNobody; });
    if (reader == all.end()) return {};
    one[static_cast<std::size_t>(reader - all.begin())] = *reader;
    const Pair alone = measure_pairs(one);
    LinkRate rate{alone.latency, alone.request, alone.streamed, alone.scattered, 0.0, ""};
    const int sharing =
        static_cast<int>(std::count_if(all.begin(), all.end(), [](int peer) { return peer != kNobody; }));
    const bool many = which == LinkClass::kHost ? sharing > 1 : ranks_on_host > 1;
    if (many) {
      const double together = measure_pairs(all).streamed * ranks_on_host;
      if (together < kShared * alone.streamed * ranks_on_host) rate.node = together;
    } else if (which == LinkClass::kFabric) {
      rate.node = alone.streamed;  // further ranks of a host would have the same wire
    }
    rate.source = fmt::format("measured: {} between {}", transport_.name(),
                              which == LinkClass::kHost ? "ranks of a host" : "hosts, a wire a host");
    return rate;
  }

  // Collective: every rank that has a peer reads from it, all at once; the rates of the slowest, on every rank.
  Pair measure_pairs(const std::vector<int>& peers) {
    const int peer = peers[static_cast<std::size_t>(ranks_.rank())];
    Pair pair;
    std::array<double, 3> seconds{};
    ranks_.barrier("measure links");
    if (peer != kNobody) {
      seconds = {best_read(peer, 1, kSmall), best_read(peer, kBatch, kSmall), best_read(peer, kBatch, block_)};
    }
    ranks_.barrier("measure links", std::chrono::seconds(60));
    std::array<double, 4> slowest = {seconds[0], seconds[1], seconds[2], best_stream(peers)};
    ranks_.all_reduce_max("measure links", slowest);
    pair.latency = slowest[0];
    pair.request = std::max(0.0, (slowest[1] - slowest[0]) / (kBatch - 1));
    const auto bytes = static_cast<double>(block_) * kBatch;
    // What the model adds apart is taken off; a tenth is left, or noise would make a link infinitely quick.
    const double moving = slowest[2] - pair.latency - kBatch * pair.request;
    pair.scattered = bytes / std::max(moving, slowest[2] / 10);
    pair.streamed = static_cast<double>(kStream) / std::max(slowest[3] - pair.latency, slowest[3] / 10);
    return pair;
  }

  // Seconds of the quickest batch of so many reads of so many bytes, scattered over the peer's region.
  double best_read(int peer, std::size_t count, std::int64_t bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    std::vector<std::byte> memory(count * size);
    double best = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kReadRounds; ++round) {
      std::vector<comm::RemoteRead> reads;
      for (std::size_t n = 0; n < count; ++n) {
        // Backwards through the region, so that no two reads are neighbours that could be joined.
        const auto place = static_cast<std::int64_t>(round * 7 + static_cast<int>(count - n)) * 2 * bytes;
        reads.push_back(
            {peer, 0, place % (kRegion - bytes + 1) / kSmall * kSmall, comm::Bytes(memory).subspan(n * size, size)});
      }
      const auto start = std::chrono::steady_clock::now();
      transport_.get(reads)->wait();
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  }

  // Collective: seconds of a message from every peer to its reader by the communicator; 0 for a rank that takes none.
  double best_stream(const std::vector<int>& peers) {
    const auto me = static_cast<std::size_t>(ranks_.rank());
    const std::vector<std::byte> sent(kStream);
    std::vector<std::byte> received(kStream);
    std::vector<comm::ConstBytes> send(peers.size());
    std::vector<comm::Bytes> receive(peers.size());
    for (std::size_t reader = 0; reader < peers.size(); ++reader) {
      if (peers[reader] == ranks_.rank()) send[reader] = sent;
    }
    if (peers[me] != kNobody) receive[static_cast<std::size_t>(peers[me])] = received;
    double best = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kStreamRounds; ++round) {
      ranks_.barrier("measure streams");
      const auto start = std::chrono::steady_clock::now();
      ranks_.all_to_all("measure streams", send, receive);
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return peers[me] == kNobody ? 0.0 : best;
  }

  comm::Communicator& ranks_;
  comm::BlockTransport& transport_;
  std::int64_t block_;
  std::vector<std::string> hosts_;  // by rank
};

}  // namespace

LinkMeasurement measure_links(comm::Communicator& ranks, comm::TransportChoice choice, std::int64_t block) {
  if (ranks.size() == 1) return {};
  comm::ChosenTransport chosen;
  runtime::agree(ranks, "choose the transport", [&] { chosen = comm::choose_transport(ranks, choice, kRegion); });
  LinkMeasurement measured = Links(ranks, *chosen.transport, block).run();
  measured.transport = chosen.transport->name();
  return measured;
}

}  // namespace ringmark::cluster
