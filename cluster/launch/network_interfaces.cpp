#include "cluster/launch/network_interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <system_error>

namespace ringmark::cluster {
namespace {

using Interfaces = std::vector<NetworkInterface>;

std::optional<std::uint32_t> number_of(const std::string& address) {
  in_addr parsed{};
  if (inet_pton(AF_INET, address.c_str(), &parsed) != 1) return std::nullopt;
  return ntohl(parsed.s_addr);
}

// "10.0.0.0/8". No answer for what is no network.
std::optional<bool> lies_in(const std::string& address, const std::string& network) {
  const std::size_t slash = network.find('/');
  if (slash == std::string::npos) return std::nullopt;
  const auto base = number_of(network.substr(0, slash));
  const auto own = number_of(address);
  const int bits = std::atoi(network.c_str() + slash + 1);
  if (!base || !own || bits < 0 || bits > 32) return std::nullopt;
  const std::uint32_t mask = bits == 0 ? 0 : ~std::uint32_t{0} << (32 - bits);
  return (*base & mask) == (*own & mask);
}

bool is_named(const NetworkInterface& interface, const std::string& name) {
  if (interface.name == name) return true;
  return std::ranges::any_of(interface.addresses,
                             [&](const std::string& address) { return lies_in(address, name).value_or(false); });
}

std::string names_of(const Interfaces& interfaces) {
  std::string text;
  for (const NetworkInterface& interface : interfaces) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", interface.name, interface.up ? "" : " (down)");
  }
  return text.empty() ? "none" : text;
}

std::string fault_of(const Interfaces& interfaces, const std::function<bool(const NetworkInterface&)>& wanted) {
  bool found = false;
  std::string down;
  for (const NetworkInterface& interface : interfaces) {
    if (!wanted(interface)) continue;
    if (interface.up && !interface.addresses.empty()) return {};
    found = true;
    down += fmt::format("{}{}", down.empty() ? "" : ", ", interface.name);
  }
  if (found) return fmt::format("{} is down or has no address", down);
  return fmt::format("no such interface on this host, which has {}", names_of(interfaces));
}

}  // namespace

std::vector<NetworkInterface> network_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  std::map<std::string, NetworkInterface> by_name;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    NetworkInterface& interface = by_name[entry->ifa_name];
    interface.name = entry->ifa_name;
    interface.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    interface.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
    if (inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size()) != nullptr) {
      interface.addresses.emplace_back(text.data());
    }
  }
  freeifaddrs(list);
  Interfaces interfaces;
  for (auto& [name, interface] : by_name) interfaces.push_back(std::move(interface));
  return interfaces;
}

bool has_rdma_device() {
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator();
}

std::vector<std::string> split_list(std::string_view list) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) parts.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return parts;
}

std::string fault_of_named(std::string_view list, const Interfaces& interfaces) {
  const std::vector<std::string> names = split_list(list);
  return fault_of(interfaces, [&](const NetworkInterface& interface) {
    return std::ranges::any_of(names, [&](const std::string& name) { return is_named(interface, name); });
  });
}

std::string fault_of_prefixes(std::string_view list, const Interfaces& interfaces) {
  const bool excludes = list.starts_with("^");
  if (excludes) list.remove_prefix(1);
  const bool exact = list.starts_with("=");
  if (exact) list.remove_prefix(1);
  const std::vector<std::string> names = split_list(list);
  return fault_of(interfaces, [&](const NetworkInterface& interface) {
    const bool named = std::ranges::any_of(names, [&](const std::string& name) {
      return exact ? interface.name == name : interface.name.starts_with(name);
    });
    return named != excludes;
  });
}

}  // namespace ringmark::cluster
