// What `ringmark decode` was asked to do. What depends on the snapshot and on the steps is checked when they are open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/options/option_layers.h"
#include "cluster/options/run_options.h"
#include "cluster/options/transport_name.h"
#include "kernels/backend.h"
#include "kvstore/block_codec.h"
#include "runtime/decode_plan.h"

namespace ringmark::cluster {

struct DecodeOptions : RunOptions {
  std::string snapshot;   // folder
  std::string input;      // steps
  std::string output;     // empty: none
  std::int64_t rows = 1;  // new tokens a step
  std::int64_t skip = 0;  // first rows of the input that are left out
  bool save = false;      // a new generation at the end

  runtime::Exchange exchange = runtime::Exchange::kAuto;
  kernels::Backend backend = kernels::Backend::kCpu;
  bool share_gpu = false;  // several ranks on one GPU, by consent
  TransportName transport = TransportName::kAuto;
  std::optional<kvstore::BlockFormat> kv_format;  // unset: the snapshot's
  std::optional<std::int64_t> cache_mib;          // unset: the usual, or what one row may need
};

// `arguments` stand behind the word decode. Throws Error(kBadInput) in one line naming option, value and limit.
DecodeOptions parse_decode_options(const std::vector<std::string>& arguments, const Environment& environment);

boost::program_options::options_description decode_descriptions();
std::string decode_help();

}  // namespace ringmark::cluster
