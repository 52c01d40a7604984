#include "cluster/options/size_text.h"

#include <gtest/gtest.h>

#include <limits>

namespace ringmark::cluster {
namespace {

TEST(ParseCount, takes_binary_suffixes) {
  EXPECT_EQ(parse_count("0"), 0);
  EXPECT_EQ(parse_count("131072"), 131072);
  EXPECT_EQ(parse_count("128k"), 131072);
  EXPECT_EQ(parse_count("128K"), 131072);
  EXPECT_EQ(parse_count("1m"), 1 << 20);
  EXPECT_EQ(parse_count("2G"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_count("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(parse_count("9007199254740991k"), 9007199254740991 * 1024);
}

TEST(ParseCount, refuses_everything_else) {
  for (const char* text : {"", " 1", "1 ", "-1", "+1", "1.5k", "1e3", "0x10", "k", "1kk", "1kb", "1t", "ten", "1,2",
                           "9223372036854775808", "9007199254740992k", "99999999999999999999g"}) {
    EXPECT_FALSE(parse_count(text).has_value()) << text;
  }
}

TEST(BytesText, uses_the_largest_unit_that_fits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.0 KiB");
  EXPECT_EQ(bytes_text(12'897'485), "12.3 MiB");
  EXPECT_EQ(bytes_text((1 << 20) - 1), "1.0 MiB");  // not 1024.0 KiB
  EXPECT_EQ(bytes_text(std::int64_t{3} << 40), "3.0 TiB");
  EXPECT_EQ(bytes_text(std::numeric_limits<std::int64_t>::max()), "8.0 EiB");
  EXPECT_EQ(bytes_text(-2048), "-2.0 KiB");
}

}  // namespace
}  // namespace ringmark::cluster
