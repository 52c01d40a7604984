// Which tokens a kept chunk and everything before it in its sequence were made from: a chain of SHA-256, so that two
// sequences share a hash exactly as far as they share their tokens.
//
//     hash of chunk n = SHA-256(hash of chunk n - 1 (nothing for the first), token ids as little-endian int64)
//
// The chain begins anew with every sequence; only full chunks have a hash.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ringmark::kvstore {

// False in a build without OpenSSL.
bool can_hash_prefixes();

// 64 hex digits. parent: the hash of the chunk before, empty for the first. Throws Error(kEnvironment) where prefixes
// cannot be hashed.
std::string prefix_hash(std::string_view parent, std::span<const std::int64_t> token_ids);

}  // namespace ringmark::kvstore
