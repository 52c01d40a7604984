// Checksums of blocks against published vectors and loops written here.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "kvstore/block_tags.h"
#include "kvstore/crc32c.h"

namespace ringmark::kvstore {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// One bit at a time, the polynomial reflected.
std::uint32_t crc32c_by_bits(std::span<const std::byte> data) {
  std::uint32_t state = ~0u;
  for (const std::byte byte : data) {
    state ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1u) != 0 ? 0x82F63B78u : 0u);
  }
  return ~state;
}

TEST(Crc32c, known_vectors) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c({}), 0u);
  // RFC 3720, appendix B.4.
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8A9136AAu);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xFF'))), 0x62A8AB43u);
}

TEST(Crc32c, equals_the_definition_at_every_length_and_goes_on) {
  std::mt19937 random(1);
  std::string text(300, '\0');
  for (char& c : text) c = static_cast<char>(random());
  for (std::size_t length = 0; length <= 70; ++length) {
    const auto data = bytes_of(text).subspan(length % 9, length);
    EXPECT_EQ(crc32c(data), crc32c_by_bits(data)) << length;
    const std::size_t cut = length / 3;
    EXPECT_EQ(crc32c(data.subspan(cut), crc32c(data.first(cut))), crc32c(data)) << length;
  }
  EXPECT_EQ(crc32c(bytes_of(text)), crc32c_by_bits(bytes_of(text)));
}

TEST(BlockTags, knows_what_was_set_and_names_what_is_wrong) {
  BlockTags tags(5, 10, 2);
  EXPECT_FALSE(tags.knows(ChunkId(7)));
  const std::vector<std::uint32_t> checksums = {crc32c(bytes_of("first")), crc32c(bytes_of("second"))};
  tags.set(ChunkId(7), checksums);
  EXPECT_TRUE(tags.knows(ChunkId(7)));
  EXPECT_FALSE(tags.knows(ChunkId(6)));
  EXPECT_EQ(tags.of(ChunkId(7))[1], checksums[1]);
  tags.verify(0, 3, ChunkId(7), 1, bytes_of("second"));
  try {
    tags.verify(2, 3, ChunkId(7), 1, bytes_of("first"));
    FAIL() << "the block of another head passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kPeer);
    const std::string text = error.what();
    for (const char* part : {"rank 2", "layer 5", "chunk 7", "kv head 1", "rank 3"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  EXPECT_THROW(tags.verify(0, 1, ChunkId(6), 0, {}), Error);
}

}  // namespace
}  // namespace ringmark::kvstore
