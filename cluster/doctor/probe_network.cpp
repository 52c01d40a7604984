#include "cluster/doctor/probe_network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

namespace ringmark::cluster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kStage = "probe the network";
constexpr std::chrono::milliseconds kConnectLimit{2000};
constexpr int kClockRounds = 9;

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

sockaddr* generic(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }

// Listens on every address. 0: it cannot.
int listen_anywhere(const Socket& socket) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  if (socket.get() < 0 || bind(socket.get(), generic(address), sizeof address) != 0 || listen(socket.get(), 128) != 0 ||
      getsockname(socket.get(), generic(address), &length) != 0) {
    return 0;
  }
  return ntohs(address.sin_port);
}

// "PORT ADDRESS,ADDRESS".
std::string text_of(int port, const std::vector<NetworkInterface>& interfaces) {
  std::string text = fmt::format("{} ", port);
  for (const NetworkInterface& interface : interfaces) {
    if (interface.loopback || !interface.up) continue;
    for (const std::string& address : interface.addresses) text += address + ",";
  }
  return text;
}

struct Attempt {
  std::string host;
  std::string address;
  Socket socket;
  std::string fault;  // empty: it came about
  bool pending = false;
};

Attempt begin_connect(const std::string& host, const std::string& address, int port) {
  Attempt attempt{host, address, Socket(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), "", false};
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, address.c_str(), &target.sin_addr);
  if (connect(attempt.socket.get(), generic(target), sizeof target) == 0) return attempt;
  attempt.pending = errno == EINPROGRESS;
  if (!attempt.pending) attempt.fault = std::strerror(errno);
  return attempt;
}

void finish_connects(std::vector<Attempt>& attempts) {
  const auto end = Clock::now() + kConnectLimit;
  for (Attempt& attempt : attempts) {
    if (!attempt.pending) continue;
    pollfd event{attempt.socket.get(), POLLOUT, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (poll(&event, 1, static_cast<int>(std::max<std::int64_t>(0, left))) <= 0) {
      attempt.fault = fmt::format("no answer within {} s", kConnectLimit.count() / 1000);
      continue;
    }
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) attempt.fault = std::strerror(error);
  }
}

bool is_own(const std::string& address, const std::vector<NetworkInterface>& own) {
  return std::ranges::any_of(own, [&](const NetworkInterface& interface) {
    return std::ranges::find(interface.addresses, address) != interface.addresses.end();
  });
}

// By order of first ranks.
std::vector<int> leaders_of(const std::vector<std::string>& hosts) {
  std::vector<int> leaders;
  std::set<std::string> seen;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (seen.insert(hosts[rank]).second) leaders.push_back(static_cast<int>(rank));
  }
  return leaders;
}

std::vector<Attempt> connect_to_others(std::size_t place, const std::vector<int>& leaders,
                                       const std::vector<std::string>& hosts, const std::vector<std::string>& offers,
                                       const std::vector<NetworkInterface>& own) {
  std::vector<Attempt> attempts;
  for (std::size_t distance = 1; distance < leaders.size(); distance *= 2) {
    const auto other = static_cast<std::size_t>(leaders[(place + distance) % leaders.size()]);
    const std::string& offer = offers[other];
    const std::size_t space = std::min(offer.find(' '), offer.size());
    const int port = std::atoi(offer.c_str());
    for (const std::string& address : split_list(std::string_view(offer).substr(std::min(space + 1, offer.size())))) {
      // A bridge of containers has the same address everywhere.
      if (port > 0 && !is_own(address, own)) attempts.push_back(begin_connect(hosts[other], address, port));
    }
  }
  finish_connects(attempts);
  return attempts;
}

// A line an address that was not reached: "W..." where the host was reached at another one, "F..." where not.
std::string faults_text(const std::string& host, const std::vector<Attempt>& attempts) {
  std::string text;
  for (const Attempt& attempt : attempts) {
    if (attempt.fault.empty()) continue;
    const bool otherwise = std::ranges::any_of(
        attempts, [&](const Attempt& other) { return other.host == attempt.host && other.fault.empty(); });
    text += fmt::format("{}{} does not reach {} at {}: {}\n", otherwise ? 'W' : 'F', host, attempt.host,
                        attempt.address, attempt.fault);
  }
  return text;
}

void add_faults(const std::string& text, Findings& findings) {
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const bool fails = text[begin] == 'F';
    findings.push_back({fails ? Level::kFail : Level::kWarn, "network", text.substr(begin + 1, end - begin - 1),
                        fails ? "look at the link and the firewall of both hosts: ip -br addr"
                              : "name the interface that joins the hosts in OMPI_MCA_btl_tcp_if_include, "
                                "UCX_NET_DEVICES and NCCL_SOCKET_IFNAME"});
  }
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

Findings probe_reachability(comm::Communicator& ranks, const std::vector<std::string>& hosts,
                            const std::vector<NetworkInterface>& own) {
  const std::vector<int> leaders = leaders_of(hosts);
  if (leaders.size() == 1) return {};
  const auto found = std::ranges::find(leaders, ranks.rank());
  const bool leads = found != leaders.end();
  const Socket listener(leads ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1);
  const auto offers = ranks.gather_texts(kStage, leads ? text_of(listen_anywhere(listener), own) : "");
  std::string faults;
  if (leads) {
    const auto place = static_cast<std::size_t>(found - leaders.begin());
    faults = faults_text(hosts[static_cast<std::size_t>(ranks.rank())],
                         connect_to_others(place, leaders, hosts, offers, own));
  }
  Findings findings;
  for (const std::string& text : ranks.gather_texts(kStage, faults)) add_faults(text, findings);
  if (!findings.empty()) return findings;
  return {
      {Level::kPass, "network", fmt::format("{} hosts reach each other at all their addresses", leaders.size()), ""}};
}

Findings probe_clocks(comm::Communicator& ranks, const std::vector<std::string>& hosts) {
  const std::vector<int> leaders = leaders_of(hosts);
  if (leaders.size() == 1) return {};
  std::vector<std::vector<double>> offsets(leaders.size());
  double uncertain = 1e300;
  for (int round = 0; round < kClockRounds; ++round) {
    const double begin = now();
    ranks.barrier(kStage);
    const double end = now();
    uncertain = std::min(uncertain, end - begin);
    const auto times = ranks.gather_sizes(kStage, static_cast<std::int64_t>(end * 1e9));
    for (std::size_t i = 0; i < leaders.size(); ++i) {
      offsets[i].push_back(static_cast<double>(times[static_cast<std::size_t>(leaders[i])] - times[0]) * 1e-9);
    }
  }
  ranks.all_reduce_max(kStage, std::span(&uncertain, 1));
  double largest = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < leaders.size(); ++i) {
    std::ranges::nth_element(offsets[i], offsets[i].begin() + kClockRounds / 2);
    if (std::abs(offsets[i][kClockRounds / 2]) <= std::abs(largest)) continue;
    largest = offsets[i][kClockRounds / 2];
    where = i;
  }
  return {{Level::kInfo, "clock",
           fmt::format("largest offset from {}: {:+.3f} ms on {}, within {:.3f} ms", hosts[0], largest * 1e3,
                       hosts[static_cast<std::size_t>(leaders[where])], uncertain * 1e3),
           ""}};
}

}  // namespace ringmark::cluster
