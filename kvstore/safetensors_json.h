// The JSON of a safetensors header as an event handler: only what the fixed schema allows gets past an event, so depth,
// counts and types are bounded while reading and no document tree ever exists.
//
//     { "__metadata__": { string: string, ... },
//       name: { "dtype": string, "shape": [integers], "data_offsets": [begin, end] }, ... }
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kvstore/safetensors_header.h"

namespace ringmark::kvstore {

struct SafetensorsJson {
  std::map<std::string, std::string> metadata;
  std::vector<StoredTensor> tensors;  // in the order of the text; each agrees with its own dtype, shape and offsets
};

// Throws Error(kBadInput) with `path` in one line; exceptions of the JSON library do not escape.
SafetensorsJson parse_safetensors_json(std::string_view path, std::string_view text);

// Printable ASCII stays, every other byte becomes \xNN; cut to `limit` characters.
std::string printable(std::string_view text, std::size_t limit);

}  // namespace ringmark::kvstore
