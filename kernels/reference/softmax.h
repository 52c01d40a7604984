// Softmax attention over a list of keys and values, in fp64: exact and pooled keys alike.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/ids.h"
#include "kernels/reference/attention.h"

namespace ringmark::kernels::reference {

struct KeyValue {
  std::vector<double> key;
  std::vector<double> value;
};

// The key and the value of a token, for one kv head.
KeyValue exact_key(const Layer& layer, TokenId token, std::int64_t kv_head);
// Their means over tokens; at least one.
KeyValue mean_key(const Layer& layer, const std::vector<TokenId>& tokens, std::int64_t kv_head);

struct Softmax {
  std::vector<double> weights;  // one a key
  std::vector<double> out;      // [d]; 0 without keys
  double lse = -std::numeric_limits<double>::infinity();
};
// Query head `head` of token `query`; logits follow the cap of the problem.
Softmax attend(const Layer& layer, TokenId query, std::int64_t head, const std::vector<KeyValue>& keys);

}  // namespace ringmark::kernels::reference
