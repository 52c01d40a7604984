#include "cluster/launch/launch_settings.h"

#include <gtest/gtest.h>

#include <set>

#include "cluster/launch/network_interfaces.h"

namespace ringmark::cluster {
namespace {

using Variables = std::map<std::string, std::string>;

// Two hosts of two ranks and four processors, one Ethernet interface each.
LaunchFacts plain(Variables variables = {}) {
  LaunchFacts facts;
  facts.environment = std::move(variables);
  facts.ranks = 4;
  facts.host_ranks = 2;
  facts.cpus = 4;
  facts.bound_cpus = 2;
  facts.interfaces = {{"docker0", {"172.17.0.1"}, true, false},
                      {"eth0", {"10.1.2.3"}, true, false},
                      {"eth1", {"10.9.2.3"}, false, false},
                      {"lo", {"127.0.0.1"}, true, true}};
  return facts;
}

std::set<std::string> faulty(const LaunchFacts& facts) {
  std::set<std::string> names;
  for (const SettingFault& fault : find_setting_faults(facts)) names.emplace(fault.setting->name);
  return names;
}

std::string words_of(const LaunchFacts& facts) {
  const auto faults = find_setting_faults(facts);
  return faults.size() == 1 ? faults.front().found : "not one fault";
}

using Names = std::set<std::string>;

TEST(LaunchSettings, has_a_name_a_reason_and_a_fix_in_every_row) {
  Names names;
  for (const LaunchSetting& setting : launch_settings()) {
    EXPECT_TRUE(names.emplace(setting.name).second) << setting.name;
    for (const std::string_view text : {setting.wanted, setting.why, setting.fix}) {
      EXPECT_FALSE(text.empty()) << setting.name;
      EXPECT_EQ(text.find('\n'), std::string_view::npos) << setting.name;
    }
  }
}

TEST(LaunchSettings, finds_nothing_where_nothing_is_set) { EXPECT_EQ(faulty(plain()), Names{}); }

TEST(LaunchSettings, wants_any_fabric_for_ucx_without_infiniband) {
  const Variables ucx{{"OMPI_MCA_pml", "ucx"}};
  EXPECT_EQ(faulty(plain(ucx)), (Names{"OMPI_MCA_pml_ucx_tls", "OMPI_MCA_pml_ucx_devices"}));
  LaunchFacts fabric = plain(ucx);
  fabric.rdma = true;
  EXPECT_EQ(faulty(fabric), Names{});
  Variables any = ucx;
  any["OMPI_MCA_pml_ucx_tls"] = "any";
  EXPECT_EQ(faulty(plain(any)), Names{"OMPI_MCA_pml_ucx_devices"});
  any["OMPI_MCA_pml_ucx_devices"] = "any";
  EXPECT_EQ(faulty(plain(any)), Names{});
  any["OMPI_MCA_pml_ucx_devices"] = "mlx5_0:1";
  EXPECT_EQ(words_of(plain(any)), "OMPI_MCA_pml=ucx, no InfiniBand device, and OMPI_MCA_pml_ucx_devices=mlx5_0:1");
}

TEST(LaunchSettings, knows_lists_that_connect_nothing) {
  const auto btl = [](const std::string& value) { return plain({{"OMPI_MCA_btl", value}}); };
  for (const char* fine : {"tcp,self", "self,vader,tcp", "^openib", "^vader"})
    EXPECT_EQ(faulty(btl(fine)), Names{}) << fine;
  EXPECT_EQ(words_of(btl("self,vader")), "OMPI_MCA_btl=self,vader: nothing reaches another host");
  EXPECT_EQ(words_of(btl("^tcp")), "OMPI_MCA_btl=^tcp: nothing reaches another host");
  EXPECT_EQ(words_of(btl("vader,tcp")), "OMPI_MCA_btl=vader,tcp: no rank reaches itself");
  LaunchFacts one_host = btl("self,vader");
  one_host.ranks = 2;
  EXPECT_EQ(faulty(one_host), Names{});
  one_host.environment["OMPI_MCA_btl"] = "^tcp";
  EXPECT_EQ(faulty(one_host), Names{});
  one_host.environment["OMPI_MCA_btl"] = "^tcp,vader";
  EXPECT_EQ(faulty(one_host), Names{"OMPI_MCA_btl"});
  one_host.environment["OMPI_MCA_btl"] = "self";
  EXPECT_EQ(words_of(one_host), "OMPI_MCA_btl=self: nothing connects the ranks of a host");
  one_host.ranks = one_host.host_ranks = 1;
  EXPECT_EQ(faulty(one_host), Names{});
}

TEST(LaunchSettings, knows_transports_of_ucx_that_reach_nobody) {
  const auto tls = [](const std::string& value, bool ucx = true) {
    LaunchFacts facts = plain({{"UCX_TLS", value}});
    facts.use.ucx = ucx;
    return facts;
  };
  for (const char* fine : {"tcp", "tcp,sm,self", "all", "^posix", "sm,tcp"})
    EXPECT_EQ(faulty(tls(fine)), Names{}) << fine;
  for (const char* wrong : {"self", "sm,self", "rc,sm", "^tcp"})
    EXPECT_EQ(faulty(tls(wrong)), Names{"UCX_TLS"}) << wrong;
  EXPECT_EQ(faulty(tls("self", false)), Names{}) << "nobody uses UCX";
  LaunchFacts fabric = tls("rc,sm");
  fabric.rdma = true;
  EXPECT_EQ(faulty(fabric), Names{});
  LaunchFacts one_host = tls("sm,self");
  one_host.ranks = 2;
  EXPECT_EQ(faulty(one_host), Names{});
  one_host.environment["UCX_TLS"] = "self";
  EXPECT_EQ(words_of(one_host), "UCX_TLS=self: nothing connects the ranks of a host");
}

TEST(LaunchSettings, looks_for_the_interfaces_that_are_named) {
  LaunchFacts facts = plain({{"OMPI_MCA_btl_tcp_if_include", "eth7"}});
  EXPECT_EQ(
      words_of(facts),
      "OMPI_MCA_btl_tcp_if_include=eth7: no such interface on this host, which has docker0, eth0, eth1 (down), lo");
  facts.environment["OMPI_MCA_btl_tcp_if_include"] = "eth1";
  EXPECT_EQ(words_of(facts), "OMPI_MCA_btl_tcp_if_include=eth1: eth1 is down or has no address");
  for (const char* fine : {"eth0", "eth1,eth0", "10.1.0.0/16"}) {
    facts.environment["OMPI_MCA_btl_tcp_if_include"] = fine;
    EXPECT_EQ(faulty(facts), Names{}) << fine;
  }
  facts.environment["OMPI_MCA_btl_tcp_if_include"] = "10.2.0.0/16";
  EXPECT_EQ(faulty(facts), Names{"OMPI_MCA_btl_tcp_if_include"});
  facts = plain({{"UCX_NET_DEVICES", "ib0"}});
  EXPECT_EQ(faulty(facts), Names{});
  facts.use.ucx = true;
  EXPECT_EQ(faulty(facts), Names{"UCX_NET_DEVICES"});
  facts.environment["UCX_NET_DEVICES"] = "mlx5_0:1";
  EXPECT_EQ(faulty(facts), Names{});
}

TEST(LaunchSettings, looks_for_the_interface_of_nccl) {
  LaunchFacts facts = plain({{"NCCL_SOCKET_IFNAME", "ib"}});
  EXPECT_EQ(faulty(facts), Names{}) << "no GPUs are used";
  facts.use.gpus = true;
  EXPECT_EQ(faulty(facts), Names{"NCCL_SOCKET_IFNAME"});
  for (const char* fine : {"eth", "eth0", "=eth0", "^lo,docker", "ib,eth"}) {
    facts.environment["NCCL_SOCKET_IFNAME"] = fine;
    EXPECT_EQ(faulty(facts), Names{}) << fine;
  }
  for (const char* wrong : {"=eth", "^lo,docker,eth", "eth1"}) {
    facts.environment["NCCL_SOCKET_IFNAME"] = wrong;
    EXPECT_EQ(faulty(facts), Names{"NCCL_SOCKET_IFNAME"}) << wrong;
  }
  facts.environment.clear();
  EXPECT_EQ(faulty(facts), Names{}) << "one interface can be meant";
  facts.interfaces[2].up = true;
  EXPECT_EQ(words_of(facts), "NCCL_SOCKET_IFNAME is not set and this host has eth0, eth1");
}

TEST(LaunchSettings, wants_ranks_to_yield_when_there_are_too_many) {
  LaunchFacts facts = plain();
  facts.host_ranks = 5;
  facts.ranks = 10;
  EXPECT_EQ(words_of(facts), "5 ranks on 4 processors, and OMPI_MCA_mpi_yield_when_idle is not 1");
  facts.environment["OMP_WAIT_POLICY"] = "active";
  EXPECT_EQ(faulty(facts), (Names{"OMPI_MCA_mpi_yield_when_idle", "OMP_WAIT_POLICY"}));
  facts.environment = {{"OMPI_MCA_mpi_yield_when_idle", "1"}};
  EXPECT_EQ(faulty(facts), Names{});
  facts.environment = {{"OMPI_MCA_mpi_oversubscribe", "1"}};  // mpirun --oversubscribe
  EXPECT_EQ(faulty(facts), Names{});
}

TEST(LaunchSettings, knows_what_slurm_passes_on) {
  LaunchFacts facts = plain({{"SLURM_MPI_TYPE", "pmi2"}});
  EXPECT_EQ(faulty(facts), Names{"SLURM_MPI_TYPE"});
  facts.environment["SLURM_MPI_TYPE"] = "pmix_v4";
  EXPECT_EQ(faulty(facts), Names{});
  facts = plain({{"SLURM_CPUS_PER_TASK", "4"}, {"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(words_of(facts), "SLURM_CPUS_PER_TASK=4 but this task may use 2");
  facts.bound_cpus = 4;
  EXPECT_EQ(faulty(facts), Names{});
}

TEST(LaunchSettings, knows_the_rest_of_the_table) {
  LaunchFacts facts = plain({{"UCX_HANDLE_ERRORS", "bt,freeze"}});
  EXPECT_EQ(faulty(facts), Names{});
  facts.use.ucx = true;
  EXPECT_EQ(faulty(facts), Names{"UCX_HANDLE_ERRORS"});
  facts = plain({{"OMP_PROC_BIND", "close"}});
  facts.given_cpus = 2;
  EXPECT_EQ(faulty(facts), Names{}) << "bound to nothing less than it was given";
  facts.given_cpus = 4;
  EXPECT_EQ(words_of(facts), "OMP_PROC_BIND=close: a rank that was given 4 processors is bound to 2");
  facts = plain({{"CUDA_LAUNCH_BLOCKING", "1"}, {"NCCL_IB_DISABLE", "1"}});
  facts.rdma = true;
  EXPECT_EQ(faulty(facts), Names{});
  facts.use.gpus = true;
  EXPECT_EQ(faulty(facts), (Names{"CUDA_LAUNCH_BLOCKING", "NCCL_IB_DISABLE"}));
}

TEST(LaunchedRanks, reads_mpirun_before_slurm) {
  const auto expect = [](const Variables& variables, int all, int on_host) {
    const LaunchedRanks ranks = launched_ranks(variables);
    EXPECT_EQ(ranks.all, all);
    EXPECT_EQ(ranks.on_host, on_host);
  };
  expect({}, 1, 1);
  expect({{"OMPI_COMM_WORLD_SIZE", "6"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}, {"SLURM_STEP_NUM_TASKS", "1"}}, 6, 3);
  expect({{"PMIX_RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "7"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2),3"}}, 7, 3);
  expect({{"SLURM_STEP_NUM_TASKS", "7"}}, 1, 1);  // without PMIx each is alone
}

TEST(NetworkInterfaces, finds_the_loopback_of_this_host) {
  bool found = false;
  for (const NetworkInterface& interface : network_interfaces()) found = found || interface.loopback;
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace ringmark::cluster
