// The manifest: what is written is read again, and nothing else is.
#include "kvstore/snapshot_manifest.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "core/error.h"
#include "kvstore/crc32c.h"

namespace ringmark::kvstore {
namespace {

SnapshotManifest some_manifest() {
  SnapshotManifest manifest;
  manifest.generation = 7;
  manifest.layer = 2;
  manifest.problem = {22, 4, 2, 8, 4, DType::kFloat16, 0.3f, true, {0, 9, 9, 22}};
  manifest.policy = {8, 3, 1, Scorer::kMean};
  manifest.format = BlockFormat::kInt8;
  for (int chunk = 0; chunk < 7; ++chunk) {
    manifest.prefixes.hashes.push_back(chunk == 2 || chunk == 6 ? "" : std::string(64, static_cast<char>('0' + chunk)));
  }
  manifest.prefixes.tails = {{5}, {}, {std::numeric_limits<std::int64_t>::min()}};
  manifest.shards = {{"shard-00000.safetensors", 1000, 0x0000abcdu, {0, 2, 4}},
                     {"shard-00001.safetensors", 2000, 0xffffffffu, {1, 3, 5, 6}},
                     {"shard-00002.safetensors", 8, 0, {}}};
  return manifest;
}

// Text with a checksum that fits it, so that what is refused is refused for what it says.
std::string sealed(const std::string& body) {
  return fmt::format("{}  \"checksum\": \"{:08x}\"\n}}\n", body, crc32c(std::as_bytes(std::span(body))));
}

std::string body() {
  const std::string text = manifest_text(some_manifest());
  return text.substr(0, text.rfind("  \"checksum\""));
}

// The body with one thing replaced.
std::string with(const std::string& what, const std::string& by) {
  std::string text = body();
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return sealed(text.replace(at, what.size(), by));
}

std::string refusal(const std::string& text) {
  try {
    parse_manifest(text, "dir/manifest.json");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput) << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with("dir/manifest.json: ")) << error.what();
    EXPECT_LT(std::string(error.what()).size(), 400u);
    return error.what();
  }
}

void expect_refused(const std::string& text, const std::string& part) {
  const std::string line = refusal(text);
  EXPECT_NE(line.find(part), std::string::npos) << "'" << part << "' is not in: " << line;
}

TEST(SnapshotManifest, comes_back_as_it_was) {
  const SnapshotManifest written = some_manifest();
  const SnapshotManifest read = parse_manifest(manifest_text(written), "m");
  EXPECT_EQ(read.generation, written.generation);
  EXPECT_EQ(read.layer, written.layer);
  EXPECT_EQ(read.problem.tokens, written.problem.tokens);
  EXPECT_EQ(read.problem.cu_seqlens, written.problem.cu_seqlens);
  EXPECT_EQ(read.problem.scale, written.problem.scale);
  EXPECT_EQ(read.problem.dtype, written.problem.dtype);
  EXPECT_EQ(read.problem.landmark_slots, written.problem.landmark_slots);
  EXPECT_EQ(read.policy.sinks, written.policy.sinks);
  EXPECT_EQ(read.policy.scorer, written.policy.scorer);
  EXPECT_EQ(read.format, written.format);
  EXPECT_EQ(read.prefixes.hashes, written.prefixes.hashes);
  EXPECT_EQ(read.prefixes.tails, written.prefixes.tails);
  ASSERT_EQ(read.shards.size(), 3u);
  EXPECT_EQ(read.shards[1].file, written.shards[1].file);
  EXPECT_EQ(read.shards[1].bytes, 2000);
  EXPECT_EQ(read.shards[1].checksum, 0xffffffffu);
  EXPECT_EQ(read.shards[1].chunks, written.shards[1].chunks);
  EXPECT_EQ(manifest_text(read), manifest_text(written));
  EXPECT_EQ(refusal(sealed(body())), "");
}

TEST(SnapshotManifest, refuses_what_is_no_json_object) {
  expect_refused("", "does not begin");
  expect_refused("[1]", "does not begin");
  expect_refused("\xEF\xBB\xBF" + manifest_text(some_manifest()), "does not begin");
  expect_refused("{", "not JSON");
  expect_refused(body(), "not JSON");
  expect_refused(manifest_text(some_manifest()) + "{}", "not JSON");
  expect_refused(manifest_text(some_manifest()) + std::string(1, '\0'), "NUL");
  expect_refused(with("\"layer\": 2", "\"layer\": 2 /* two */"), "not JSON");
  expect_refused(with("\"layer\": 2", "\"layer\": " + std::string(100'000, '[')), "deeper");
  expect_refused(with("\"layer\": 2", "\"layer\": 1e999"), "not JSON");
  expect_refused(with("mean", "m\xFFn"), "not JSON");
}

TEST(SnapshotManifest, refuses_fields_that_are_missing_unknown_doubled_or_of_another_type) {
  expect_refused(with("\"ringmark_snapshot\": 1", "\"ringmark_snapshot\": 2"), "ringmark_snapshot = 2");
  expect_refused(with("  \"layer\": 2,\n", ""), "layer is missing");
  expect_refused(with("\"layer\": 2", "\"layer\": 2, \"colour\": 1"), "colour is not a field");
  expect_refused(with("\"layer\": 2", "\"layer\": 2, \"layer\": 2"), "'layer' twice");
  expect_refused(with("\"layer\": 2", "\"layer\": 2, \"\\u006cayer\": 2"), "'layer' twice");
  expect_refused(with("\"bytes\":1000", "\"bytes\":1000,\"bytes\":1000"), "'bytes' twice");
  expect_refused(with("\"bytes\":1000", "\"bytes\":1000,\"colour\":1"), "shards[0].colour");
  expect_refused(with("\"bytes\":1000,", ""), "shards[0].bytes is missing");
  for (const char* value : {"\"2\"", "2.0", "true", "null", "[2]", "{}", "-1", "18446744073709551615", "1e3"}) {
    expect_refused(with("\"layer\": 2", fmt::format("\"layer\": {}", value)), "layer = ");
    expect_refused(with("\"bytes\":1000", fmt::format("\"bytes\":{}", value)), "shards[0].bytes = ");
  }
  expect_refused(with("\"landmark_slots\": true", "\"landmark_slots\": 1"), "landmark_slots = 1");
  expect_refused(with("\"scorer\": \"mean\"", "\"scorer\": \"best\""), "scorer = 'best'");
  expect_refused(with("\"dtype\": \"fp16\"", "\"dtype\": 16"), "dtype = 16");
  expect_refused(with("\"block_format\": \"int8\"", "\"block_format\": \"int2\""), "block_format = 'int2'");
  expect_refused(with("[0,9,9,22]", "[0,9,9,\"22\"]"), "cu_seqlens[3] = '22'");
  expect_refused(with("[0,9,9,22]", "{}"), "cu_seqlens = object");
}

TEST(SnapshotManifest, refuses_numbers_past_their_limits) {
  expect_refused(with("\"generation\": 7", "\"generation\": 0"), "generation = 0");
  expect_refused(with("\"generation\": 7", "\"generation\": 1000000"), "generation = 1000000");
  expect_refused(with("\"tokens\": 22", "\"tokens\": 0"), "tokens = 0");
  expect_refused(with("\"tokens\": 22", "\"tokens\": 23"), "cu_seqlens ends at 22");
  expect_refused(with("[0,9,9,22]", "[0,9,8,22]"), "cu_seqlens[2] = 8");
  expect_refused(with("\"heads\": 4", "\"heads\": 3"), "heads = 3");
  expect_refused(with("\"head_dim\": 8", "\"head_dim\": 257"), "head_dim = 257");
  expect_refused(with("\"chunk_size\": 4", "\"chunk_size\": 1"), "chunk_size = 1");
  expect_refused(with("\"scale\": 0.3", "\"scale\": -0.3"), "scale = -0.3");
  expect_refused(with("\"scale\": 0.3", "\"scale\": 1e300, \"x\": 0.3"), "scale = 1e+300");
  expect_refused(with("\"topk\": 3", "\"topk\": 4097"), "topk = 4097");
}

TEST(SnapshotManifest, refuses_file_names_that_are_no_plain_names) {
  for (const char* name : {"", ".", "..", "../shard", "/etc/passwd", "a/b", "a\\\\b", ".hidden", "a\\u0000b", "a b",
                           "caf\\u00e9", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}) {
    expect_refused(with("\"shard-00000.safetensors\"", fmt::format("\"{}\"", name)), "shards[0].file = ");
  }
  expect_refused(with("shard-00001.safetensors", "shard-00000.safetensors"), "two shards");
}

TEST(SnapshotManifest, refuses_chunks_that_are_missing_doubled_or_outside) {
  expect_refused(with("[0,2,4]", "[0,2]"), "6 chunks, the sequences have 7");
  expect_refused(with("[0,2,4]", "[0,2,3]"), "chunk 3 is in two shards");
  expect_refused(with("[0,2,4]", "[0,2,2]"), "shards[0].chunks[2] = 2");
  expect_refused(with("[0,2,4]", "[2,0,4]"), "shards[0].chunks[1] = 0");
  expect_refused(with("[0,2,4]", "[0,2,7]"), "chunks[2] = 7");
  expect_refused(with("[0,2,4]", "[0,2,-4]"), "chunks[2] = -4");
  expect_refused(with("\"chunks\":[]", "\"chunks\":[6]"), "8 chunks");
}

std::string hash_text(char digit) { return fmt::format("\"{}\"", std::string(64, digit)); }

TEST(SnapshotManifest, refuses_prefix_hashes_that_fit_no_chunk) {
  expect_refused(with(hash_text('0'), "\"\""), "prefix_hashes[1]");
  expect_refused(with(hash_text('0') + ",", ""), "prefix_hashes = array");
  expect_refused(with(std::string(64, '0'), std::string(64, 'A')), "prefix_hashes[0]");
  expect_refused(with("\"\"", hash_text('0')), "prefix_hashes[2]");
  expect_refused(with("\"\"", "null"), "prefix_hashes[2]");
  // The last full chunk of a sequence may have none; then the ids behind it say nothing.
  expect_refused(with(hash_text('1'), "\"\""), "tail_ids[0]");
}

TEST(SnapshotManifest, refuses_ids_that_fit_no_growing_chunk) {
  expect_refused(with("[[5],[],[-9223372036854775808]]", "[[5],[]]"), "it has 2, sequences are 3");
  expect_refused(with("[[5],[],[-9223372036854775808]]", "[[5,6],[],[7]]"), "tail_ids[0] = array is not empty or of 1");
  expect_refused(with("[[5],[],[-9223372036854775808]]", "[[5],[6],[7]]"), "tail_ids[1] = array is not empty or of 0");
  expect_refused(with("[[5],[],[-9223372036854775808]]", "[[5],[],7]"), "tail_ids[2] = 7 is not a list");
  expect_refused(with("-9223372036854775808", "-9223372036854775809"), "tail_ids[2][0]");
  expect_refused(with("-9223372036854775808", "1.5"), "tail_ids[2][0] = 1.5");
  expect_refused(with("-9223372036854775808", "[1]"), "tail_ids[2][0] = array");
}

// Snapshots of the time before there were ids of growing chunks.
TEST(SnapshotManifest, opens_without_ids_of_growing_chunks) {
  const SnapshotManifest read = parse_manifest(with("  \"tail_ids\": [[5],[],[-9223372036854775808]],\n", ""), "m");
  EXPECT_EQ(read.prefixes.hashes, some_manifest().prefixes.hashes);
  EXPECT_TRUE(read.prefixes.tails.empty());
  EXPECT_EQ(manifest_text(read).find("tail_ids"), std::string::npos);
}

TEST(SnapshotManifest, refuses_every_text_that_was_cut_and_every_flipped_bit) {
  const std::string text = manifest_text(some_manifest());
  for (std::size_t length = 0; length < text.size(); ++length) EXPECT_NE(refusal(text.substr(0, length)), "") << length;
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(refusal(flipped), "") << "bit " << bit;
  }
}

}  // namespace
}  // namespace ringmark::kvstore
