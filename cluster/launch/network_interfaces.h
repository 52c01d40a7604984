// The network interfaces of this host, as settings name them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringmark::cluster {

struct NetworkInterface {
  std::string name;
  std::vector<std::string> addresses;  // IPv4
  bool up = false;                     // administratively up and with a carrier
  bool loopback = false;
};

// Ordered by name. Empty where the kernel cannot be asked.
std::vector<NetworkInterface> network_interfaces();

// Whether an interface with InfiniBand verbs (InfiniBand, RoCE) is there.
bool has_rdma_device();

// What is wrong with a list of interface names or CIDR networks, as Open MPI's btl_tcp_if_include takes it; empty when
// one of them can carry traffic: up, with an address.
std::string fault_of_named(std::string_view list, const std::vector<NetworkInterface>& interfaces);

// The same for NCCL_SOCKET_IFNAME: prefixes, "=" before a list of exact names, "^" before a list of excluded prefixes.
std::string fault_of_prefixes(std::string_view list, const std::vector<NetworkInterface>& interfaces);

// The parts of a list between commas; no empty ones.
std::vector<std::string> split_list(std::string_view list);

}  // namespace ringmark::cluster
