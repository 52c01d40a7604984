// What a prefill that is told to stop leaves to the next run of the same command: the rows that are done and how far
// every rank is. K, V and landmarks are not kept, the input has them. One safetensors file that all ranks write, it
// appears whole or not at all. Described in docs/formats.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "comm/communicator.h"
#include "core/problem.h"
#include "kvstore/safetensors_file.h"
#include "partition/layout.h"
#include "runtime/layer_shard.h"
#include "runtime/prefill.h"
#include "runtime/shared_output.h"

namespace ringmark::runtime {

class PrefillCheckpoint {
 public:
  // `shard` still has its keys and values: rows belong to their input. `run` is what else must be equal for the next
  // run to go on. Problem, policy and layout outlive the checkpoint.
  PrefillCheckpoint(std::string path, const AttentionProblem& problem, const AttentionPolicy& policy,
                    const partition::Layout& layout, RankId rank, const LayerShard& shard,
                    const std::map<std::string, std::string>& run);

  // What prefill() takes to go on; no row is done where the file is missing or, then with the reason, does not belong.
  struct Found {
    PrefillResult begun;
    std::string refusal;
  };
  // Collective: the same on all ranks, and all rows of all ranks or none.
  Found find(comm::Communicator& communicator) const;
  // Collective: replaces what was there, in a folder that is made if need be.
  void write(comm::Communicator& communicator, const PrefillResult& result) const;
  // Collective: the whole result is kept elsewhere.
  void remove(comm::Communicator& communicator) const;

 private:
  SharedFile describe() const;
  PrefillResult read() const;
  void check_belongs_here(const kvstore::SafetensorsFile& file) const;

  std::string path_;
  const AttentionProblem& problem_;
  const AttentionPolicy& policy_;
  const partition::Layout& layout_;
  RankId rank_;
  std::map<std::string, std::string> belongs_to_;
  std::uint32_t input_checksum_;
};

}  // namespace ringmark::runtime
