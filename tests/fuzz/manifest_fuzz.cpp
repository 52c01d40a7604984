// The input is a manifest. Its checksum is also put right, so that what stands before it is not all that is tried.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kvstore/crc32c.h"
#include "kvstore/snapshot_manifest.h"
#include "tests/fuzz/refusal.h"

using ringmark::fuzz::accepts;
using ringmark::fuzz::must_hold;
using ringmark::kvstore::manifest_text;
using ringmark::kvstore::parse_manifest;

namespace {

// What is accepted and written again is accepted again, and is then written the same.
void parse(std::string_view text) {
  std::string written;
  if (!accepts([&] { written = manifest_text(parse_manifest(text, "input")); })) return;
  std::string again;
  must_hold(accepts([&] { again = manifest_text(parse_manifest(written, "written")); }), "its own text is accepted");
  must_hold(again == written, "its own text says the same");
}

std::string with_right_checksum(std::string_view text) {
  const std::string body(text.substr(0, text.rfind("  \"checksum\"")));
  const std::uint32_t checksum = ringmark::kvstore::crc32c(std::as_bytes(std::span(body)));
  return body + fmt::format("  \"checksum\": \"{:08x}\"\n}}\n", checksum);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  parse(text);
  parse(with_right_checksum(text));
  return 0;
}
