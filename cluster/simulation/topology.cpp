#include "cluster/simulation/topology.h"

#include <fmt/format.h>

namespace ringmark::cluster {

LinkRate link_of(const Fabric& fabric) {
  LinkRate link;
  link.latency = fabric.latency;
  link.streamed = fabric.rail * fabric.streams;
  link.scattered = fabric.rail * fabric.blocks;
  link.source = fmt::format("assumed: {} of {:g} GB/s a rail, {:g}% of it for streams, {:g}% for blocks", fabric.name,
                            fabric.rail / 1e9, 100 * fabric.streams, 100 * fabric.blocks);
  return link;
}

}  // namespace ringmark::cluster
