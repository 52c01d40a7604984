// What layer_bench was asked to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/cuda/choose_device_transport.h"
#include "kernels/cuda/layer.h"
#include "runtime/fetch_strategy.h"
#include "runtime/planted_layer.h"

namespace ringmark::bench {

struct LayerOptions {
  std::vector<std::int64_t> tokens = {131072, 1048576};
  std::int64_t heads = 32, kv_heads = 8, head_dim = 128, window = 512, topk = 16;
  runtime::PlantedOptions planted;
  int repeats = 5;
  std::string selection_file;  // of the first length, for the peers; one rank
  std::optional<kernels::cuda::Path> path;
  bool dense = true;  // one rank
  // More ranks.
  bool alone = false;  // first rank 0 by itself
  bool share = false;  // a GPU between ranks
  comm::cuda::DeviceTransportChoice transport = comm::cuda::DeviceTransportChoice::kAuto;
  runtime::Fetch fetch = runtime::Fetch::kAuto;
};

// Throws Error(kBadInput) naming the option.
LayerOptions read_layer_options(int argc, char** argv);

}  // namespace ringmark::bench
