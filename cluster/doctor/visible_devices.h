// Which of a host's GPUs CUDA shows to a process, as its programming guide says of CUDA_VISIBLE_DEVICES.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/assign_devices.h"

namespace ringmark::cluster {

struct VisibleDevices {
  std::vector<std::size_t> numbers;  // into the host's GPUs, by CUDA's numbers
  std::string trouble;               // the first entry that counts for nothing, with its reason
};

// uuids: of the host's GPUs, by number. variable: null when unset, then all are visible. Entries are numbers or
// beginnings of UUIDs; the first one that names no GPU ends the list, a GPU named twice empties it.
VisibleDevices visible_devices(std::span<const std::string> uuids, const char* variable);

// "GPU-8f6bb1a5-...", as bytes. Zeros for what is none.
comm::Uuid uuid_of(const std::string& text);

}  // namespace ringmark::cluster
