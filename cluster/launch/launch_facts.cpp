#include "cluster/launch/launch_facts.h"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

namespace ringmark::cluster {
namespace {

std::map<std::string, std::string> whole_environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

int number(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? 0 : std::atoi(found->second.c_str());
}

// "4(x2),3": 4.
int most_tasks(const std::string& tasks_per_node) {
  int most = 1;
  for (const std::string& part : split_list(tasks_per_node)) most = std::max(most, std::atoi(part.c_str()));
  return most;
}

int bound_cpus(int all) {
  cpu_set_t bound;
  CPU_ZERO(&bound);
  return sched_getaffinity(0, sizeof(bound), &bound) == 0 ? CPU_COUNT(&bound) : all;
}

// OpenMP lists its places before it binds the first thread to one of them.
int processors_of_places() {
  int processors = 0;
  for (int place = 0; place < omp_get_num_places(); ++place) processors += omp_get_place_num_procs(place);
  return processors;
}

}  // namespace

std::string LaunchFacts::value(const std::string& name) const {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

LaunchedRanks launched_ranks(const std::map<std::string, std::string>& environment) {
  if (const int ranks = number(environment, "OMPI_COMM_WORLD_SIZE"); ranks > 0) {
    return {ranks, std::max(1, number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"))};
  }
  if (!environment.contains("PMIX_RANK")) return {};
  const int ranks = std::max(1, number(environment, "SLURM_STEP_NUM_TASKS"));
  const auto tasks = environment.find("SLURM_STEP_TASKS_PER_NODE");
  return {ranks, tasks == environment.end() ? ranks : std::min(ranks, most_tasks(tasks->second))};
}

LaunchFacts find_launch_facts(const LaunchUse& use) {
  LaunchFacts facts;
  facts.use = use;
  facts.environment = whole_environment();
  const LaunchedRanks ranks = launched_ranks(facts.environment);
  facts.ranks = ranks.all;
  facts.host_ranks = ranks.on_host;
  facts.cpus = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  facts.bound_cpus = bound_cpus(facts.cpus);
  facts.given_cpus = std::max(facts.bound_cpus, processors_of_places());
  facts.rdma = has_rdma_device();
  facts.interfaces = network_interfaces();
  return facts;
}

}  // namespace ringmark::cluster
