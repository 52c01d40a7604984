// One safetensors file that all ranks write, each its rows; it appears whole or not at all.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/ids.h"
#include "kvstore/safetensors_writer.h"

namespace ringmark::runtime {

struct SharedFile {
  std::string path;
  std::vector<kvstore::TensorToWrite> tensors;
  std::map<std::string, std::string> metadata;
};

// Rows of a tensor that this rank has: `data` holds those of all runs, in their order.
struct OwnRows {
  std::string tensor;
  std::span<const RowRange> runs;
  std::span<const std::byte> data;
};

// Throws Error when the file could not be written as things stand: folder, permissions, space. Leaves nothing behind.
void check_shared_file(const SharedFile& file);

// Collective. No row is on two ranks; those that are on none are zeros.
void write_shared_file(comm::Communicator& communicator, const SharedFile& file, std::span<const OwnRows> rows);

}  // namespace ringmark::runtime
