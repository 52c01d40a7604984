// Counts and sizes as people write and read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ringmark::cluster {

// "131072", "128k", "1m", "2g": digits and an optional binary suffix (k = 2^10, m = 2^20, g = 2^30, either case).
// Nothing for any other text and above 2^63 - 1.
std::optional<std::int64_t> parse_count(std::string_view text);

// "512 B", "12.3 MiB": the largest binary unit that leaves a number of at least 1, one digit behind the point.
std::string bytes_text(std::int64_t bytes);

}  // namespace ringmark::cluster
