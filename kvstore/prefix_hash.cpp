#include "kvstore/prefix_hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <bit>
#include <charconv>
#include <memory>
#include <system_error>

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

Digest digest_of(std::string_view text) {
  Digest digest{};
  require(text.size() == 2 * digest.size(), "a prefix hash has 64 hex digits");
  for (std::size_t n = 0; n < digest.size(); ++n) {
    const char* const digits = text.data() + 2 * n;
    const auto [end, error] = std::from_chars(digits, digits + 2, digest[n], 16);
    require(error == std::errc() && end == digits + 2, "a prefix hash has 64 hex digits");
  }
  return digest;
}

}  // namespace

bool can_hash_prefixes() { return true; }

std::string prefix_hash(std::string_view parent, std::span<const std::int64_t> token_ids) {
  Sha256 hash;
  if (!parent.empty()) {
    const Digest before = digest_of(parent);
    hash.add(std::as_bytes(std::span(before)));
  }
  hash.add(std::as_bytes(token_ids));
  return hex(hash.finish());
}

}  // namespace ringmark::kvstore
