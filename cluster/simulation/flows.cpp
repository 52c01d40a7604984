#include "cluster/simulation/flows.h"

#include <algorithm>

namespace ringmark::cluster {

double link_bytes(const LinkRate& link, std::int64_t bytes, std::int64_t reads, bool streamed) {
  const double rate = streamed || link.scattered <= 0.0 ? link.streamed : link.scattered;
  const double seconds = static_cast<double>(bytes) / rate + static_cast<double>(reads) * link.request;
  return seconds * link.streamed;
}

std::vector<Flow> flows_of(const Topology& topology, int rank, const Step& step, const SimulatedWave& wave) {
  const Endpoints endpoints(topology);
  std::vector<Flow> flows;
  std::map<std::pair<int, int>, std::size_t> known;  // by both ends
  for (const OwnerReads& reads : wave.reads) {
    const int from = endpoints.of(reads.owner, rank), to = endpoints.of(rank, reads.owner);
    const auto [at, is_new] = known.try_emplace({from, to}, flows.size());
    if (is_new) flows.push_back({from, to});
    Flow& flow = flows[at->second];
    flow.bytes += reads.bytes;
    flow.link_bytes += link_bytes(endpoints.link(to), reads.bytes, reads.reads, step.streamed);
  }
  return flows;
}

ServedSeconds::ServedSeconds(const Topology& topology, const std::vector<RankSchedule>& schedules) {
  const Endpoints endpoints(topology);
  seconds_.resize(schedules.front().steps.size());
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    for (std::size_t s = 0; s < schedules[rank].steps.size(); ++s) {
      const Step& step = schedules[rank].steps[s];
      auto& waves = seconds_[s];
      if (waves.size() < step.waves.size()) {
        waves.resize(step.waves.size(), std::vector<double>(static_cast<std::size_t>(endpoints.count())));
      }
      for (std::size_t w = 0; w < step.waves.size(); ++w) {
        for (const Flow& flow : flows_of(topology, static_cast<int>(rank), step, step.waves[w])) {
          waves[w][static_cast<std::size_t>(flow.from)] += flow.link_bytes / endpoints.link(flow.from).streamed;
        }
      }
    }
  }
}

std::vector<Flow> aggregate(const Topology& topology, const std::vector<Flow>& flows, const ServedSeconds& served,
                            std::size_t step, std::size_t wave) {
  const Endpoints endpoints(topology);
  std::vector<Flow> joined;
  for (const Flow& flow : flows) {
    auto found = std::find_if(joined.begin(), joined.end(), [&](const Flow& other) { return other.to == flow.to; });
    if (found == joined.end()) found = joined.insert(joined.end(), {-1, flow.to});
    found->bytes += flow.bytes;
    found->link_bytes += flow.link_bytes;
    found->seconds_at_least = std::max(found->seconds_at_least, served.at(step, wave, flow.from));
  }
  return joined;
}

std::int64_t count_flows(const Topology& topology, const std::vector<RankSchedule>& schedules) {
  std::int64_t flows = 0;
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    for (const Step& step : schedules[rank].steps) {
      for (const SimulatedWave& wave : step.waves) {
        flows += static_cast<std::int64_t>(flows_of(topology, static_cast<int>(rank), step, wave).size());
      }
    }
  }
  return flows;
}

}  // namespace ringmark::cluster
