#include "cluster/launch/launch_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>

namespace ringmark::cluster {
namespace {

using Names = std::initializer_list<std::string_view>;

bool contains_any(const std::vector<std::string>& list, Names names) {
  return std::ranges::any_of(list,
                             [&](const std::string& part) { return std::ranges::find(names, part) != names.end(); });
}

bool has_prefix(const std::vector<std::string>& list, Names prefixes) {
  return std::ranges::any_of(list, [&](const std::string& part) {
    return std::ranges::any_of(prefixes, [&](std::string_view prefix) { return part.starts_with(prefix); });
  });
}

std::string as_set(const LaunchFacts& facts, const char* name) { return fmt::format("{}={}", name, facts.value(name)); }

bool messages_by_ucx(const LaunchFacts& facts) {
  return contains_any(split_list(facts.value("OMPI_MCA_pml")), {"ucx"});
}

bool uses_ucx(const LaunchFacts& facts) { return facts.use.ucx || messages_by_ucx(facts); }

// Open MPI takes its ucx only for fabrics on its lists, unless both lists say any.
std::string fault_of_ucx_list(const LaunchFacts& facts, const char* list) {
  if (!messages_by_ucx(facts) || facts.rdma || facts.value(list) == "any") return {};
  const std::string set = facts.environment.contains(list) ? as_set(facts, list) : fmt::format("{} is not set", list);
  return fmt::format("OMPI_MCA_pml=ucx, no InfiniBand device, and {}", set);
}

std::string fault_of_ucx_tls(const LaunchFacts& facts) { return fault_of_ucx_list(facts, "OMPI_MCA_pml_ucx_tls"); }
std::string fault_of_ucx_devices(const LaunchFacts& facts) {
  return fault_of_ucx_list(facts, "OMPI_MCA_pml_ucx_devices");
}

// Transports of messages between ranks (BTL): a list, or what is left out.
std::string fault_of_btl(const LaunchFacts& facts) {
  const std::string text = facts.value("OMPI_MCA_btl");
  if (text.empty() || facts.ranks == 1 || messages_by_ucx(facts)) return {};
  const bool excludes = text.starts_with("^");
  const std::vector<std::string> list = split_list(std::string_view(text).substr(excludes ? 1 : 0));
  const auto offered = [&](Names names) { return contains_any(list, names) != excludes; };
  if (!offered({"self"})) return fmt::format("OMPI_MCA_btl={}: no rank reaches itself", text);
  if (facts.several_hosts() && !offered({"tcp"}) && !(facts.rdma && offered({"openib", "uct", "ofi"}))) {
    return fmt::format("OMPI_MCA_btl={}: nothing reaches another host", text);
  }
  const bool on_host = excludes ? !contains_any(list, {"vader", "sm"}) || !contains_any(list, {"tcp"})
                                : contains_any(list, {"vader", "sm", "tcp"});
  if (!on_host) return fmt::format("OMPI_MCA_btl={}: nothing connects the ranks of a host", text);
  return {};
}

std::string fault_of_btl_interface(const LaunchFacts& facts) {
  const std::string names = facts.value("OMPI_MCA_btl_tcp_if_include");
  if (names.empty() || !facts.several_hosts() || messages_by_ucx(facts)) return {};
  const std::string fault = fault_of_named(names, facts.interfaces);
  return fault.empty() ? "" : fmt::format("OMPI_MCA_btl_tcp_if_include={}: {}", names, fault);
}

std::string fault_of_ucx_transports(const LaunchFacts& facts) {
  const std::string text = facts.value("UCX_TLS");
  if (text.empty() || !uses_ucx(facts)) return {};
  const bool excludes = text.starts_with("^");
  const std::vector<std::string> list = split_list(std::string_view(text).substr(excludes ? 1 : 0));
  if (!excludes && contains_any(list, {"all"})) return {};
  const bool by_network =
      excludes ? !contains_any(list, {"tcp"}) || (facts.rdma && !contains_any(list, {"ib"}))
               : contains_any(list, {"tcp"}) || (facts.rdma && has_prefix(list, {"ib", "rc", "dc", "ud", "srd"}));
  if (by_network) return {};
  if (facts.several_hosts()) return fmt::format("UCX_TLS={}: nothing reaches another host", text);
  const bool in_memory =
      excludes ? !contains_any(list, {"sm", "shm", "sysv"}) : contains_any(list, {"sm", "shm", "posix", "sysv"});
  if (!in_memory && facts.ranks > 1) return fmt::format("UCX_TLS={}: nothing connects the ranks of a host", text);
  return {};
}

std::string fault_of_ucx_interface(const LaunchFacts& facts) {
  const std::string text = facts.value("UCX_NET_DEVICES");
  // Devices of InfiniBand have names that no interface has ("mlx5_0:1").
  if (text.empty() || text == "all" || !uses_ucx(facts) || text.find(':') != std::string::npos) return {};
  const std::string fault = fault_of_named(text, facts.interfaces);
  return fault.empty() ? "" : fmt::format("UCX_NET_DEVICES={}: {}", text, fault);
}

std::string fault_of_ucx_errors(const LaunchFacts& facts) {
  if (!uses_ucx(facts)) return {};
  const bool waits = contains_any(split_list(facts.value("UCX_HANDLE_ERRORS")), {"freeze", "debug"});
  return waits ? as_set(facts, "UCX_HANDLE_ERRORS") : "";
}

std::string fault_of_nccl_interface(const LaunchFacts& facts) {
  const std::string text = facts.value("NCCL_SOCKET_IFNAME");
  if (!facts.use.gpus || facts.ranks == 1) return {};
  if (!text.empty()) {
    const std::string fault = fault_of_prefixes(text, facts.interfaces);
    return fault.empty() ? "" : fmt::format("NCCL_SOCKET_IFNAME={}: {}", text, fault);
  }
  if (!facts.several_hosts()) return {};
  std::string usable;
  int count = 0;
  for (const NetworkInterface& interface : facts.interfaces) {
    // NCCL itself leaves these out.
    if (interface.loopback || interface.name.starts_with("docker") || !interface.up || interface.addresses.empty())
      continue;
    usable += fmt::format("{}{}", count++ == 0 ? "" : ", ", interface.name);
  }
  return count < 2 ? "" : fmt::format("NCCL_SOCKET_IFNAME is not set and this host has {}", usable);
}

std::string fault_of_nccl_rdma(const LaunchFacts& facts) {
  const bool off = facts.value("NCCL_IB_DISABLE") == "1";
  return off && facts.use.gpus && facts.several_hosts() && facts.rdma ? as_set(facts, "NCCL_IB_DISABLE") : "";
}

// mpirun tells its ranks when it starts more of them than it has slots; srun does not, and a slot count written by hand
// ("--host localhost:4") hides it.
std::string fault_of_yield(const LaunchFacts& facts) {
  const bool yields =
      facts.value("OMPI_MCA_mpi_yield_when_idle") == "1" || facts.value("OMPI_MCA_mpi_oversubscribe") == "1";
  if (!facts.oversubscribed() || yields) return {};
  return fmt::format("{} ranks on {} processor{}, and OMPI_MCA_mpi_yield_when_idle is not 1", facts.host_ranks,
                     facts.cpus, facts.cpus == 1 ? "" : "s");
}

std::string fault_of_waiting_threads(const LaunchFacts& facts) {
  const bool active = facts.value("OMP_WAIT_POLICY") == "active" || facts.value("OMP_WAIT_POLICY") == "ACTIVE";
  return active && facts.oversubscribed() ? as_set(facts, "OMP_WAIT_POLICY") : "";
}

std::string fault_of_placed_threads(const LaunchFacts& facts) {
  const std::string value = facts.value("OMP_PROC_BIND");
  if (value.empty() || facts.given_cpus <= facts.bound_cpus) return {};
  return fmt::format("OMP_PROC_BIND={}: a rank that was given {} processors is bound to {}", value, facts.given_cpus,
                     facts.bound_cpus);
}

// A step asks for processors by itself since Slurm 22.05: --cpus-per-task of the batch script is not passed on.
std::string fault_of_step_cpus(const LaunchFacts& facts) {
  const int asked = std::atoi(facts.value("SLURM_CPUS_PER_TASK").c_str());
  if (!facts.environment.contains("SLURM_STEP_ID") || asked <= facts.bound_cpus || asked > facts.cpus) return {};
  return fmt::format("SLURM_CPUS_PER_TASK={} but this task may use {}", asked, facts.bound_cpus);
}

std::string fault_of_slurm_mpi(const LaunchFacts& facts) {
  const std::string value = facts.value("SLURM_MPI_TYPE");
  return value.empty() || value.starts_with("pmix") ? "" : as_set(facts, "SLURM_MPI_TYPE");
}

std::string fault_of_launch_blocking(const LaunchFacts& facts) {
  return facts.use.gpus && facts.value("CUDA_LAUNCH_BLOCKING") == "1" ? as_set(facts, "CUDA_LAUNCH_BLOCKING") : "";
}

constexpr std::array kSettings = {
    LaunchSetting{"SLURM_MPI_TYPE", "pmix, in a Slurm job",
                  "Open MPI learns of the other ranks by PMIx; by pmi2 or none each task is a job of its own",
                  "export SLURM_MPI_TYPE=pmix", Harm::kFails, fault_of_slurm_mpi},
    LaunchSetting{"SRUN_CPUS_PER_TASK", "$SLURM_CPUS_PER_TASK, before srun in a batch script",
                  "srun does not take --cpus-per-task from sbatch: all threads of a rank would share one processor",
                  "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", Harm::kSlows, fault_of_step_cpus},
    LaunchSetting{"OMPI_MCA_mpi_yield_when_idle", "1, for more ranks than processors on a host",
                  "a rank that waits inside MPI keeps the rank it waits for off the processor",
                  "export OMPI_MCA_mpi_yield_when_idle=1", Harm::kSlows, fault_of_yield},
    LaunchSetting{"OMPI_MCA_btl", "unset, or a list with self, tcp and vader",
                  "MPI ends in MPI_Init when a pair of ranks has nothing in common to reach each other by",
                  "unset OMPI_MCA_btl", Harm::kFails, fault_of_btl},
    LaunchSetting{"OMPI_MCA_btl_tcp_if_include", "unset, or interfaces and networks of every host",
                  "MPI takes no other interface between hosts", "unset OMPI_MCA_btl_tcp_if_include", Harm::kFails,
                  fault_of_btl_interface},
    LaunchSetting{"OMPI_MCA_pml_ucx_tls", "any, with OMPI_MCA_pml=ucx and no InfiniBand",
                  "MPI ends with \"PML ucx cannot be selected\" where it finds no fabric of its list",
                  "export OMPI_MCA_pml_ucx_tls=any", Harm::kFails, fault_of_ucx_tls},
    LaunchSetting{"OMPI_MCA_pml_ucx_devices", "any, with OMPI_MCA_pml=ucx and no InfiniBand",
                  "MPI ends with \"PML ucx cannot be selected\" where it finds no device of its list",
                  "export OMPI_MCA_pml_ucx_devices=any", Harm::kFails, fault_of_ucx_devices},
    LaunchSetting{"UCX_TLS", "unset, or a list with tcp or the fabric, and shared memory",
                  "UCX reaches no rank that its transports do not reach", "unset UCX_TLS", Harm::kFails,
                  fault_of_ucx_transports},
    LaunchSetting{"UCX_NET_DEVICES", "unset, or a device of every host", "UCX takes no other device",
                  "unset UCX_NET_DEVICES", Harm::kFails, fault_of_ucx_interface},
    LaunchSetting{"UCX_HANDLE_ERRORS", "none or bt, with UCX",
                  "a rank in which UCX meets an error would wait for a debugger until the job's time is up",
                  "export UCX_HANDLE_ERRORS=none", Harm::kSlows, fault_of_ucx_errors},
    LaunchSetting{"NCCL_SOCKET_IFNAME", "one interface between the hosts, with --backend cuda",
                  "NCCL takes the first interface by itself, which may lead nowhere",
                  "export NCCL_SOCKET_IFNAME=eth0 (the interface that joins the hosts)", Harm::kFails,
                  fault_of_nccl_interface},
    LaunchSetting{"NCCL_IB_DISABLE", "unset, between hosts with InfiniBand",
                  "NCCL would go over TCP beside an idle fabric", "unset NCCL_IB_DISABLE", Harm::kSlows,
                  fault_of_nccl_rdma},
    LaunchSetting{"CUDA_LAUNCH_BLOCKING", "unset", "no kernel overlaps with a transfer or another kernel",
                  "unset CUDA_LAUNCH_BLOCKING", Harm::kSlows, fault_of_launch_blocking},
    LaunchSetting{"OMP_WAIT_POLICY", "passive, for more ranks than processors on a host",
                  "threads that wait keep those that work off the processors", "unset OMP_WAIT_POLICY", Harm::kSlows,
                  fault_of_waiting_threads},
    LaunchSetting{"OMP_PROC_BIND", "unset or false",
                  "OpenMP binds the first thread of a rank before the rank has counted its processors: it starts one "
                  "thread, and ranks of a host that were not bound share one processor",
                  "unset OMP_PROC_BIND", Harm::kSlows, fault_of_placed_threads},
};

}  // namespace

std::span<const LaunchSetting> launch_settings() { return kSettings; }

std::vector<SettingFault> find_setting_faults(const LaunchFacts& facts) {
  std::vector<SettingFault> faults;
  for (const LaunchSetting& setting : kSettings) {
    std::string found = setting.fault(facts);
    if (!found.empty()) faults.push_back({&setting, std::move(found)});
  }
  return faults;
}

}  // namespace ringmark::cluster
