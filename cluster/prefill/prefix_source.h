// `prefill --reuse DIR`: what a snapshot keeps of the documents of an input, found by their token ids, and where its
// contents come from.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/prefill/layer_source.h"
#include "cluster/prefill/prefill_options.h"
#include "cluster/prefill/prefill_report.h"
#include "comm/communicator.h"
#include "kvstore/snapshot.h"
#include "runtime/prefix_reuse.h"

namespace ringmark::cluster {

class PrefixSource {
 public:
  // Collective. Throws Error(kBadInput), agreed on by all ranks, for an input or a snapshot that does not allow it.
  PrefixSource(const PrefillOptions& options, const LayerSource& input, comm::Communicator& ranks);

  const ReuseReport& report() const { return report_; }
  bool found() const { return report_.tokens > 0; }
  // Bytes that are held until the chunks are loaded.
  std::int64_t bytes() const;
  runtime::ReusedChunks chunks() const { return {snapshot_, input_.problem(), starts_}; }

 private:
  const LayerSource& input_;
  kvstore::Snapshot snapshot_;
  std::vector<runtime::KeptStart> starts_;  // by document
  ReuseReport report_;
};

}  // namespace ringmark::cluster
