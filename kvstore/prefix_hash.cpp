#include "kvstore/prefix_hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <bit>
#include <memory>

#include "core/error.h"

namespace ringmark::kvstore {
namespace {

using Digest = std::array<unsigned char, 32>;

// Token ids go into the hash as they lie in memory.
static_assert(std::endian::native == std::endian::little);

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    check(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void add(std::span<const std::byte> bytes) {
    check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
  }
  Digest finish() {
    Digest digest{};
    check(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
    return digest;
  }

 private:
  static void check(bool good) {
    if (!good) fail_environment("OpenSSL cannot compute SHA-256");
  }

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

std::string hex(const Digest& digest) {
  std::string text;
  for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

bool can_hash_prefixes() { return true; }

std::vector<std::string> prefix_hashes(const partition::SequenceGrid& grid, std::span<const std::int64_t> token_ids) {
  require(static_cast<std::int64_t>(token_ids.size()) == grid.tokens(), "every token of the grid has an id");
  std::vector<std::string> hashes(static_cast<std::size_t>(grid.chunk_count()));
  for (const partition::Document& document : grid.documents()) {
    Digest parent{};
    for (ChunkId chunk = document.chunks.begin; chunk < document.chunks.end; ++chunk) {
      const Range<TokenId> tokens = grid.tokens_of(chunk);
      if (tokens.size() < grid.chunk_size()) break;
      Sha256 hash;
      if (chunk != document.chunks.begin) hash.add(std::as_bytes(std::span(parent)));
      hash.add(std::as_bytes(
          token_ids.subspan(static_cast<std::size_t>(tokens.begin.value()), static_cast<std::size_t>(tokens.size()))));
      parent = hash.finish();
      hashes[static_cast<std::size_t>(chunk.value())] = hex(parent);
    }
  }
  return hashes;
}

}  // namespace ringmark::kvstore
