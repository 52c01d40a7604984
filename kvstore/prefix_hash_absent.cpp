// A build without OpenSSL.
#include "core/error.h"
#include "kvstore/prefix_hash.h"

namespace ringmark::kvstore {

bool can_hash_prefixes() { return false; }

std::string prefix_hash(std::string_view, std::span<const std::int64_t>) {
  fail_environment("prefixes cannot be hashed: this build has no OpenSSL");
}

}  // namespace ringmark::kvstore
