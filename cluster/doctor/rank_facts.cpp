#include "cluster/doctor/rank_facts.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cluster/doctor/cuda_view.h"
#include "cluster/doctor/host_topology.h"
#include "cluster/doctor/nvml.h"
#include "cluster/doctor/shared_memory.h"
#include "cluster/doctor/versions.h"
#include "cluster/doctor/visible_devices.h"
#include "cluster/job/host.h"
#include "cluster/launch/launch_facts.h"
#include "cluster/launch/launch_settings.h"
#include "cluster/options/size_text.h"

namespace ringmark::cluster {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NetworkInterface, name, addresses, up, loopback)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FoundSetting, name, found)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, host, versions, cpus, bound_cpus, threads, memory, locked_memory,
                                   open_files, core_bytes, core_pattern, shared_bytes, shared_free, leftovers, rdma,
                                   interfaces, settings, topology, gpus, gpu_names, gpu_trouble, visible_devices,
                                   mpirun_in_slurm)

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::vector<int> bound_cpus() {
  cpu_set_t bound;
  CPU_ZERO(&bound);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(bound), &bound) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &bound)) cpus.push_back(cpu);
  }
  return cpus;
}

std::uint64_t limit_of(__rlimit_resource resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

std::string text_of(const ManagedGpu& gpu) {
  const std::string links = gpu.nvlinks == 0 ? "" : fmt::format(", {} NVLinks", gpu.nvlinks);
  return fmt::format("{} ({}, {}{})", gpu.uuid, gpu.name, bytes_text(gpu.memory), links);
}

void find_gpus(const ManagedGpus& managed, RankFacts& facts) {
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  facts.visible_devices = variable == nullptr ? "unset" : variable;
  std::vector<std::string> uuids;
  for (const ManagedGpu& gpu : managed.gpus) uuids.push_back(gpu.uuid);
  if (const auto seen = cuda_view()) {
    facts.gpu_trouble = seen->trouble;
    for (const comm::Uuid& gpu : seen->gpus) facts.gpus.push_back(comm::text_of(gpu));
  } else {
    const VisibleDevices visible = visible_devices(uuids, variable);
    facts.gpu_trouble = managed.trouble.empty() ? visible.trouble : managed.trouble;
    for (const std::size_t number : visible.numbers) facts.gpus.push_back(uuids[number]);
  }
  for (const std::string& gpu : facts.gpus) {
    const auto found = std::ranges::find(managed.gpus, gpu, &ManagedGpu::uuid);
    facts.gpu_names.push_back(found == managed.gpus.end() ? gpu : text_of(*found));
  }
}

}  // namespace

RankFacts find_rank_facts(const DoctorOptions& options, int host_ranks) {
  const LaunchFacts launch = find_launch_facts({.gpus = options.gpus, .ucx = options.transport == TransportName::kUcx});
  const ManagedGpus managed = managed_gpus();
  RankFacts facts;
  facts.host = host_name();
  facts.versions = find_versions(managed.driver);
  facts.cpus = launch.cpus;
  facts.bound_cpus = bound_cpus();
  facts.threads = options.threads > 0 ? static_cast<int>(options.threads) : default_threads(host_ranks);
  facts.memory = available_memory();
  facts.locked_memory = limit_of(RLIMIT_MEMLOCK);
  facts.open_files = limit_of(RLIMIT_NOFILE);
  facts.core_bytes = limit_of(RLIMIT_CORE);
  std::getline(std::ifstream("/proc/sys/kernel/core_pattern"), facts.core_pattern);
  const SharedMemory shared = look_at_shared_memory();
  facts.shared_bytes = shared.bytes;
  facts.shared_free = shared.free;
  facts.leftovers = shared.leftovers;
  facts.rdma = launch.rdma;
  facts.interfaces = launch.interfaces;
  for (const SettingFault& fault : find_setting_faults(launch)) {
    facts.settings.push_back({std::string(fault.setting->name), fault.found});
  }
  facts.topology = host_topology();
  find_gpus(managed, facts);
  facts.mpirun_in_slurm = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr && std::getenv("SLURM_JOB_ID") != nullptr;
  return facts;
}

std::string to_text(const RankFacts& facts) {
  return nlohmann::json(facts).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankFacts from_text(const std::string& text) { return nlohmann::json::parse(text).get<RankFacts>(); }

}  // namespace ringmark::cluster
