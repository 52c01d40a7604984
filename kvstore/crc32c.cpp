#include "kvstore/crc32c.h"

#include <nmmintrin.h>

#include <cstring>

namespace ringmark::kvstore {

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before) {
  std::uint64_t state = ~before;
  for (; data.size() >= sizeof(std::uint64_t); data = data.subspan(sizeof(std::uint64_t))) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data(), sizeof(word));
    state = _mm_crc32_u64(state, word);
  }
  auto narrow = static_cast<std::uint32_t>(state);
  for (const std::byte last : data) narrow = _mm_crc32_u8(narrow, std::to_integer<unsigned char>(last));
  return ~narrow;
}

}  // namespace ringmark::kvstore
