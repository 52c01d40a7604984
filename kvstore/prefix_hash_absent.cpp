// A build without OpenSSL.
#include "core/error.h"
#include "kvstore/prefix_hash.h"

namespace ringmark::kvstore {

bool can_hash_prefixes() { return false; }

std::vector<std::string> prefix_hashes(const partition::SequenceGrid&, std::span<const std::int64_t>) {
  fail_environment("prefixes cannot be hashed: this build has no OpenSSL");
}

}  // namespace ringmark::kvstore
