// CRC-32C (Castagnoli, the polynomial of iSCSI and ext4): the checksum of blocks and landmark records, in memory, on
// disk and on the way. Any single bit that flips is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ringmark::kvstore {

// `before` goes on from the checksum of the bytes in front: crc32c(b, crc32c(a)) == crc32c(a + b).
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before = 0);

}  // namespace ringmark::kvstore
