#include "kvstore/snapshot_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/error.h"
#include "kvstore/crc32c.h"
#include "kvstore/strict_json.h"
#include "partition/sequence_grid.h"

namespace ringmark::kvstore {
namespace {

using nlohmann::json;

constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMaxNumber = std::int64_t{1} << 40;  // of whatever validate() has closer limits for
constexpr double kMaxScale = 1e30;
constexpr std::size_t kMaxFileName = 64;
constexpr std::size_t kHashDigits = 64;
constexpr int kDepth = 4;  // manifest, shards, shard, its chunks

constexpr std::array kDTypes = {DType::kFloat32, DType::kBfloat16, DType::kFloat16};
constexpr std::array kScorers = {Scorer::kHils, Scorer::kMean, Scorer::kOracle, Scorer::kNone};
constexpr std::array kFormats = {BlockFormat::kAsInput, BlockFormat::kBfloat16, BlockFormat::kFloat16,
                                 BlockFormat::kFp8,     BlockFormat::kInt8,     BlockFormat::kInt4};

std::string checksum_line(std::uint32_t checksum) { return fmt::format("  \"checksum\": \"{:08x}\"\n}}\n", checksum); }

// What the checksum is of: the text up to the line that holds it, which is the last one.
std::string_view checked_text(std::string_view text) { return text.substr(0, text.size() - checksum_line(0).size()); }

template <class Choice, std::size_t kCount>
Choice choice(JsonFields& fields, const char* name, const std::array<Choice, kCount>& choices) {
  const std::string text = fields.text(name);
  std::string known;
  for (const Choice candidate : choices) {
    if (name_of(candidate) == text) return candidate;
    known += fmt::format("{}{}", known.empty() ? "one of " : ", ", name_of(candidate));
  }
  fields.fail(name, text, known);
}

bool is_hex(const std::string& text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// What can be no path: letters, digits, '-', '_' and '.', which does not stand first.
bool is_plain_name(const std::string& name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  return !name.empty() && name.size() <= kMaxFileName && name.front() != '.' &&
         name.find_first_not_of(kAllowed) == std::string::npos;
}

SnapshotShard parse_shard(const std::string& path, std::size_t index, const json& value, std::int64_t chunks) {
  JsonFields fields(path, fmt::format("shards[{}].", index), value);
  SnapshotShard shard;
  shard.file = fields.text("file");
  if (!is_plain_name(shard.file)) {
    fields.fail("file", shard.file,
                fmt::format("a plain name of 1 to {} letters, digits, '-', '_', '.'", kMaxFileName));
  }
  shard.bytes = fields.integer("bytes", 8, std::int64_t{1} << 60);
  const std::string checksum = fields.text("checksum");
  if (!is_hex(checksum, 8)) fields.fail("checksum", checksum, "8 hex digits");
  shard.checksum = static_cast<std::uint32_t>(std::stoul(checksum, nullptr, 16));
  shard.chunks = fields.integers("chunks", 0, chunks - 1);
  for (std::size_t i = 1; i < shard.chunks.size(); ++i) {
    if (shard.chunks[i] <= shard.chunks[i - 1]) {
      fields.fail(fmt::format("chunks[{}]", i), shard.chunks[i],
                  fmt::format("above the entry before it, {}", shard.chunks[i - 1]));
    }
  }
  fields.finish();
  return shard;
}

void check_shards(const std::string& path, const std::vector<SnapshotShard>& shards, std::int64_t chunks) {
  std::set<std::string_view> files;
  std::int64_t listed = 0;
  for (const SnapshotShard& shard : shards) {
    if (!files.insert(shard.file).second) {
      fail_bad_input(fmt::format("{}: two shards have the file '{}'", path, shard.file));
    }
    listed += static_cast<std::int64_t>(shard.chunks.size());
  }
  if (listed != chunks) {
    fail_bad_input(fmt::format("{}: shards hold {} chunks, the sequences have {}", path, listed, chunks));
  }
  // As many as there are, and none twice: none is missing.
  std::vector<bool> seen(static_cast<std::size_t>(chunks));
  for (const SnapshotShard& shard : shards) {
    for (const std::int64_t chunk : shard.chunks) {
      if (seen[static_cast<std::size_t>(chunk)]) {
        fail_bad_input(fmt::format("{}: chunk {} is in two shards, the second is '{}'", path, chunk, shard.file));
      }
      seen[static_cast<std::size_t>(chunk)] = true;
    }
  }
}

std::vector<std::string> parse_prefix_hashes(JsonFields& fields, const partition::SequenceGrid& grid) {
  const json& list = fields.array("prefix_hashes");
  std::vector<std::string> hashes;
  if (!list.empty() && static_cast<std::int64_t>(list.size()) != grid.chunk_count()) {
    fields.fail("prefix_hashes", list,
                fmt::format("empty or one a chunk: it has {}, chunks are {}", list.size(), grid.chunk_count()));
  }
  for (const json& value : list) {
    const ChunkId chunk(static_cast<std::int64_t>(hashes.size()));
    const bool closed = grid.tokens_of(chunk).size() == grid.chunk_size();
    const bool first = grid.document_of(chunk).chunks.begin == chunk;
    const bool may_have_one = closed && (first || !hashes.back().empty());
    if (value != "" && !(may_have_one && value.is_string() && is_hex(value.get<std::string>(), kHashDigits))) {
      fields.fail(fmt::format("prefix_hashes[{}]", chunk.value()), value,
                  may_have_one ? fmt::format("{} hex digits or empty", kHashDigits)
                               : "empty, as for a chunk that is not full or stands behind one without a hash");
    }
    hashes.push_back(value.get<std::string>());
  }
  return hashes;
}

// Of each sequence all ids of its growing chunk or none; all only where the chain reaches that chunk.
std::vector<std::vector<std::int64_t>> parse_tail_ids(JsonFields& fields, const AttentionProblem& problem,
                                                      const std::vector<std::string>& hashes) {
  if (!fields.has("tail_ids")) return {};  // as in snapshots of the time before there was such a field
  auto tails = fields.integer_lists("tail_ids", std::numeric_limits<std::int64_t>::min(),
                                    std::numeric_limits<std::int64_t>::max());
  const std::vector<std::int64_t> starts = problem.starts();
  if (!tails.empty() && (tails.size() + 1 != starts.size() || hashes.empty())) {
    fields.fail("tail_ids", json::array(),
                fmt::format("empty or, beside prefix_hashes, one list a sequence: it has {}, sequences are {}",
                            tails.size(), starts.size() - 1));
  }
  std::size_t next = 0;  // chunk of the grid
  for (std::size_t s = 0; s < tails.size(); ++s) {
    const std::int64_t length = starts[s + 1] - starts[s];
    const std::int64_t growing = length % problem.chunk_size;
    const auto full = static_cast<std::size_t>(length / problem.chunk_size);
    const bool reached = full == 0 || !hashes[next + full - 1].empty();
    if (!tails[s].empty() && !(reached && static_cast<std::int64_t>(tails[s].size()) == growing)) {
      fields.fail(fmt::format("tail_ids[{}]", s), json::array(),
                  reached ? fmt::format("empty or of {} ids, the tokens of its growing chunk", growing)
                          : "empty, as behind a chunk without a hash");
    }
    next += full + (growing > 0 ? 1 : 0);
  }
  return tails;
}

void parse_problem(JsonFields& fields, const std::string& path, SnapshotManifest& manifest) {
  AttentionProblem& problem = manifest.problem;
  problem.tokens = fields.integer("tokens", 1, kMaxNumber);
  problem.cu_seqlens = fields.integers("cu_seqlens", 0, kMaxNumber);
  problem.heads = fields.integer("heads", 1, kMaxNumber);
  problem.kv_heads = fields.integer("kv_heads", 1, kMaxNumber);
  problem.head_dim = fields.integer("head_dim", 1, kMaxNumber);
  problem.chunk_size = fields.integer("chunk_size", 1, kMaxNumber);
  problem.dtype = choice(fields, "dtype", kDTypes);
  problem.scale = static_cast<float>(fields.number("scale", 0.0, kMaxScale));
  problem.landmark_slots = fields.flag("landmark_slots");
  AttentionPolicy& policy = manifest.policy;
  policy.window = fields.integer("window", 0, kMaxNumber);
  policy.topk = fields.integer("topk", 0, kMaxNumber);
  policy.sinks = fields.integer("sinks", 0, kMaxNumber);
  policy.scorer = choice(fields, "scorer", kScorers);
  try {
    problem.validate();
    policy.validate(problem);
  } catch (const Error& error) {
    fail_bad_input(fmt::format("{}: {}", path, error.what()));
  }
}

void check_checksum(std::string_view text, const std::string& path) {
  const std::uint32_t expected = crc32c(std::as_bytes(std::span(checked_text(text))));
  if (!text.ends_with(checksum_line(expected))) {
    fail_bad_input(fmt::format("{}: checksum is not {:08x}, that of the text: the file is damaged", path, expected));
  }
}

}  // namespace

std::string manifest_text(const SnapshotManifest& manifest) {
  const AttentionProblem& problem = manifest.problem;
  const AttentionPolicy& policy = manifest.policy;
  json shards = json::array();
  for (const SnapshotShard& shard : manifest.shards) {
    shards.push_back({{"file", shard.file},
                      {"bytes", shard.bytes},
                      {"checksum", fmt::format("{:08x}", shard.checksum)},
                      {"chunks", shard.chunks}});
  }
  std::vector<std::pair<const char*, json>> fields = {{"ringmark_snapshot", kVersion},
                                                      {"generation", manifest.generation},
                                                      {"layer", manifest.layer},
                                                      {"tokens", problem.tokens},
                                                      {"cu_seqlens", problem.cu_seqlens},
                                                      {"heads", problem.heads},
                                                      {"kv_heads", problem.kv_heads},
                                                      {"head_dim", problem.head_dim},
                                                      {"chunk_size", problem.chunk_size},
                                                      {"dtype", name_of(problem.dtype)},
                                                      {"scale", problem.scale},
                                                      {"landmark_slots", problem.landmark_slots},
                                                      {"window", policy.window},
                                                      {"topk", policy.topk},
                                                      {"sinks", policy.sinks},
                                                      {"scorer", name_of(policy.scorer)},
                                                      {"block_format", name_of(manifest.format)},
                                                      {"prefix_hashes", manifest.prefixes.hashes}};
  if (!manifest.prefixes.tails.empty()) fields.emplace_back("tail_ids", manifest.prefixes.tails);
  fields.emplace_back("shards", shards);
  std::string text = "{\n";
  for (const auto& [name, value] : fields) text += fmt::format("  \"{}\": {},\n", name, value.dump());
  return text + checksum_line(crc32c(std::as_bytes(std::span(text))));
}

SnapshotManifest parse_manifest(std::string_view text, const std::string& path) {
  if (std::cmp_greater(text.size(), kMaxManifestBytes)) {
    fail_bad_input(fmt::format("{}: has {} bytes, above the limit of {}", path, text.size(), kMaxManifestBytes));
  }
  const json document = parse_strict_json(path, text, kDepth);
  JsonFields fields(path, "", document);
  SnapshotManifest manifest;
  fields.integer("ringmark_snapshot", kVersion, kVersion);
  manifest.generation = static_cast<std::uint64_t>(fields.integer("generation", 1, kMaxGeneration));
  manifest.layer = fields.integer("layer", 0, kMaxNumber);
  parse_problem(fields, path, manifest);
  manifest.format = choice(fields, "block_format", kFormats);
  const partition::SequenceGrid grid(manifest.problem, manifest.policy);
  manifest.prefixes.hashes = parse_prefix_hashes(fields, grid);
  manifest.prefixes.tails = parse_tail_ids(fields, manifest.problem, manifest.prefixes.hashes);
  for (const json& value : fields.array("shards")) {
    manifest.shards.push_back(parse_shard(path, manifest.shards.size(), value, grid.chunk_count()));
  }
  fields.text("checksum");
  fields.finish();
  check_shards(path, manifest.shards, grid.chunk_count());
  check_checksum(text, path);
  return manifest;
}

}  // namespace ringmark::kvstore
