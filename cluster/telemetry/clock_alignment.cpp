#include "cluster/telemetry/clock_alignment.h"

#include <algorithm>
#include <vector>

namespace ringmark::cluster {
namespace {

constexpr int kPings = 10;
constexpr std::string_view kStage = "align clocks";

// A message from one rank to another, while all others pass by: with nothing to say an exchange sends nothing.
void pass(comm::Communicator& ranks, int from, int to, double& value) {
  std::vector<comm::ConstBytes> send(static_cast<std::size_t>(ranks.size()));
  std::vector<comm::Bytes> receive(static_cast<std::size_t>(ranks.size()));
  const std::span<double> message(&value, 1);
  if (ranks.rank() == from) send[static_cast<std::size_t>(to)] = std::as_bytes(message);
  if (ranks.rank() == to) receive[static_cast<std::size_t>(from)] = std::as_writable_bytes(message);
  ranks.all_to_all(kStage, send, receive);
}

}  // namespace

ClockOffset best_offset(std::span<const Ping> pings) {
  const auto round_trip = [](const Ping& ping) { return ping.arrived_us - ping.sent_us; };
  const Ping& best = *std::min_element(pings.begin(), pings.end(),
                                       [&](const Ping& a, const Ping& b) { return round_trip(a) < round_trip(b); });
  const double middle = best.sent_us + round_trip(best) / 2;
  return {middle, best.answered_us - middle, round_trip(best) / 2};
}

double ClockAlignment::aligned(double own_us) const {
  const double length = end.at_us - begin.at_us;
  const double share = length > 0 ? (own_us - begin.at_us) / length : 0.0;
  return own_us + begin.offset_us + share * (end.offset_us - begin.offset_us);
}

double ClockAlignment::uncertainty_us() const { return std::max(begin.uncertainty_us, end.uncertainty_us); }

double ClockAlignment::drift_us_per_second() const {
  const double length = end.at_us - begin.at_us;
  return length > 0 ? (end.offset_us - begin.offset_us) / length * 1e6 : 0.0;
}

ClockOffset measure_offset(comm::Communicator& ranks, const ClockMicroseconds& now) {
  ClockOffset mine{now(), 0.0, 0.0};
  for (int rank = 1; rank < ranks.size(); ++rank) {
    const bool is_mine = ranks.rank() == rank;
    std::vector<Ping> pings;
    for (int n = 0; n < kPings; ++n) {
      Ping ping{now(), 0.0, 0.0};
      double time = ping.sent_us;
      pass(ranks, rank, 0, time);
      if (ranks.rank() == 0) time = now();
      pass(ranks, 0, rank, time);
      ping.answered_us = time;
      ping.arrived_us = now();
      if (is_mine) pings.push_back(ping);
    }
    if (is_mine) mine = best_offset(pings);
  }
  return mine;
}

}  // namespace ringmark::cluster
