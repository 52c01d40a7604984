#include "cluster/doctor/host_topology.h"

#include <fmt/format.h>
#include <hwloc.h>

namespace ringmark::cluster {
namespace {

std::string counted(hwloc_topology_t topology, hwloc_obj_type_t type, const char* noun) {
  const int count = hwloc_get_nbobjs_by_type(topology, type);
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// "eth0 at NUMA node 0".
std::string place_of(hwloc_topology_t topology, hwloc_obj_t device) {
  const hwloc_obj_t holder = hwloc_get_non_io_ancestor_obj(topology, device);
  if (holder == nullptr || holder->nodeset == nullptr || hwloc_bitmap_weight(holder->nodeset) != 1) return device->name;
  return fmt::format("{} at NUMA node {}", device->name, hwloc_bitmap_first(holder->nodeset));
}

std::string devices(hwloc_topology_t topology) {
  std::string text;
  for (hwloc_obj_t device = hwloc_get_next_osdev(topology, nullptr); device != nullptr;
       device = hwloc_get_next_osdev(topology, device)) {
    const hwloc_obj_osdev_type_t type = device->attr->osdev.type;
    if (type == HWLOC_OBJ_OSDEV_BLOCK || type == HWLOC_OBJ_OSDEV_DMA || device->name == nullptr) continue;
    text += fmt::format(", {}", place_of(topology, device));
  }
  return text;
}

}  // namespace

std::string host_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return "not known: hwloc cannot start";
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  std::string text = "not known: hwloc finds nothing";
  if (hwloc_topology_load(topology) == 0) {
    text = fmt::format("{}, {}, {}, {}{}", counted(topology, HWLOC_OBJ_PACKAGE, "package"),
                       counted(topology, HWLOC_OBJ_NUMANODE, "NUMA node"), counted(topology, HWLOC_OBJ_CORE, "core"),
                       counted(topology, HWLOC_OBJ_PU, "processor"), devices(topology));
  }
  hwloc_topology_destroy(topology);
  return text;
}

}  // namespace ringmark::cluster
