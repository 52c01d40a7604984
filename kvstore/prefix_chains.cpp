#include "kvstore/prefix_chains.h"

#include <algorithm>
#include <string_view>

#include "core/error.h"
#include "kvstore/prefix_hash.h"

namespace ringmark::kvstore {

PrefixChains::PrefixChains(std::int64_t chunk_size, std::int64_t sequences)
    : chunk_size_(chunk_size), chains_(static_cast<std::size_t>(sequences)) {}

void PrefixChains::append(std::int64_t sequence, std::optional<std::int64_t> token_id) {
  Chain& chain = chains_[static_cast<std::size_t>(sequence)];
  chain.known = chain.known && token_id;
  if (chain.known) chain.tail.push_back(*token_id);
  if (!chain.known) chain.tail.clear();
  if (++chain.tail_tokens < chunk_size_) return;
  chain.known = chain.known && can_hash_prefixes();
  const std::string_view parent = chain.hashes.empty() ? std::string_view() : chain.hashes.back();
  chain.hashes.push_back(chain.known ? prefix_hash(parent, chain.tail) : "");
  chain.tail_tokens = 0;
  chain.tail.clear();
}

void PrefixChains::begin(std::int64_t sequence, std::int64_t tokens, std::span<const std::string> hashes,
                         std::span<const std::int64_t> tail) {
  Chain& chain = chains_[static_cast<std::size_t>(sequence)];
  require(chain.hashes.empty() && chain.tail_tokens == 0, "a sequence begins once");
  chain.hashes.assign(hashes.begin(), hashes.end());
  chain.hashes.resize(static_cast<std::size_t>(tokens / chunk_size_));
  chain.tail_tokens = tokens % chunk_size_;
  chain.known = (chain.hashes.empty() || !chain.hashes.back().empty()) &&
                static_cast<std::int64_t>(tail.size()) == chain.tail_tokens;
  if (chain.known) chain.tail.assign(tail.begin(), tail.end());
}

KnownPrefixes PrefixChains::known() const {
  KnownPrefixes known;
  bool any = false, any_tail = false;
  for (const Chain& chain : chains_) {
    known.hashes.insert(known.hashes.end(), chain.hashes.begin(), chain.hashes.end());
    if (chain.tail_tokens > 0) known.hashes.emplace_back();
    known.tails.push_back(chain.tail);
    any_tail = any_tail || !chain.tail.empty();
    any = any || any_tail ||
          std::any_of(chain.hashes.begin(), chain.hashes.end(), [](const std::string& hash) { return !hash.empty(); });
  }
  if (!any) return {};
  if (!any_tail) known.tails.clear();
  return known;
}

PrefixChains prefix_chains(const AttentionProblem& problem, std::span<const std::int64_t> token_ids) {
  require(static_cast<std::int64_t>(token_ids.size()) == problem.tokens, "every token of the problem has an id");
  const std::vector<std::int64_t> starts = problem.starts();
  PrefixChains chains(problem.chunk_size, static_cast<std::int64_t>(starts.size()) - 1);
  for (std::size_t s = 0; s + 1 < starts.size(); ++s) {
    for (std::int64_t token = starts[s]; token < starts[s + 1]; ++token) {
      chains.append(static_cast<std::int64_t>(s), token_ids[static_cast<std::size_t>(token)]);
    }
  }
  return chains;
}

}  // namespace ringmark::kvstore
