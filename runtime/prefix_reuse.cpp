#include "runtime/prefix_reuse.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "core/error.h"
#include "runtime/kept_sequences.h"

namespace ringmark::runtime {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

// The beginnings that a snapshot keeps, by the hash of their last chunk; the first of those that are alike.
std::unordered_map<std::string_view, KeptStart> kept_beginnings(const kvstore::SnapshotManifest& kept) {
  std::unordered_map<std::string_view, KeptStart> beginnings;
  const std::vector<ChunkId> first = first_chunks(kept.problem);
  for (std::size_t s = 0; s + 1 < first.size(); ++s) {
    for (ChunkId chunk = first[s]; chunk < first[s + 1]; ++chunk) {
      const std::string& hash = kept.prefixes.hashes[size(chunk.value())];
      if (hash.empty()) break;
      const std::int64_t tokens = (chunk - first[s] + 1) * kept.problem.chunk_size;
      beginnings.try_emplace(hash, KeptStart{static_cast<std::int64_t>(s), tokens});
    }
  }
  return beginnings;
}

// Whether all K and V of a chunk, kept as they came, are those of the rows. blocks: [Hkv][encoded block].
bool are_rows(std::span<const std::byte> blocks, const kernels::BlockShape& shape, const LayerShard& rows) {
  const RowsView keys = rows.keys(), values = rows.values();
  const std::size_t stride = blocks.size() / size(keys.heads);
  const std::size_t row_bytes = size(shape.row_bytes());
  for (std::int64_t head = 0; head < keys.heads; ++head) {
    const std::byte* const block = blocks.data() + size(head) * stride;
    for (std::int64_t slot = 0; slot < shape.chunk_size; ++slot) {
      const std::byte* const key = block + size(slot) * row_bytes;
      if (std::memcmp(key, keys.row(slot, head), row_bytes) != 0) return false;
      if (std::memcmp(key + shape.value_offset(), values.row(slot, head), row_bytes) != 0) return false;
    }
  }
  return true;
}

}  // namespace

void expect_reusable(const std::string& folder, const kvstore::SnapshotManifest& kept, const InputLayer& input) {
  const auto expect = [&](const char* field, const auto& asked, const auto& has) {
    if (asked == has) return;
    fail_bad_input(
        fmt::format("{}: cannot be reused: its {} is {}, that of the input is {}", folder, field, has, asked));
  };
  const AttentionProblem& problem = input.problem;
  const AttentionPolicy& policy = input.policy;
  if (const std::string field = beyond_plain_logits(problem, policy); !field.empty()) {
    fail_bad_input(fmt::format("{}: cannot be reused: the input has {}, and no snapshot does", folder, field));
  }
  expect("layer", input.layer, kept.layer);
  expect("heads", problem.heads, kept.problem.heads);
  expect("kv_heads", problem.kv_heads, kept.problem.kv_heads);
  expect("head_dim", problem.head_dim, kept.problem.head_dim);
  expect("dtype", name_of(problem.dtype), name_of(kept.problem.dtype));
  expect("chunk_size", problem.chunk_size, kept.problem.chunk_size);
  expect("landmark_slots", problem.landmark_slots, kept.problem.landmark_slots);
  expect("scale", problem.scale, kept.problem.scale);
  expect("scorer", name_of(policy.scorer), name_of(kept.policy.scorer));
  if (policy.selects()) {
    expect("choice", name_of(policy.choice), name_of(kept.policy.choice));
    expect("fusion", name_of(policy.fusion), name_of(kept.policy.fusion));
  }
  expect("window", policy.window, kept.policy.window);
  expect("topk", policy.topk, kept.policy.topk);
  expect("sinks", policy.sinks, kept.policy.sinks);
  if (kept.prefixes.hashes.empty()) {
    fail_bad_input(fmt::format("{}: cannot be reused: it has no prefix hashes, its input had no token_ids", folder));
  }
}

std::vector<KeptStart> match_prefixes(const AttentionProblem& problem, const kvstore::PrefixChains& prefixes,
                                      const kvstore::SnapshotManifest& kept) {
  const auto beginnings = kept_beginnings(kept);
  const std::vector<std::int64_t> documents = problem.starts();
  std::vector<KeptStart> starts;
  for (std::size_t d = 0; d + 1 < documents.size(); ++d) {
    KeptStart start;
    for (const std::string& hash : prefixes.hashes(static_cast<std::int64_t>(d))) {
      const auto found = beginnings.find(hash);
      const std::int64_t tokens = start.tokens + problem.chunk_size;
      if (tokens >= documents[d + 1] - documents[d] || found == beginnings.end()) break;
      require(found->second.tokens == tokens, "equal hashes stand for beginnings of one length");
      start = found->second;
    }
    starts.push_back(start);
  }
  return starts;
}

void check_reused_rows(const std::string& folder, const kvstore::Snapshot& snapshot, const AttentionProblem& problem,
                       std::span<const KeptStart> starts, RankId rank, int ranks, const LoadRows& load) {
  const kvstore::SnapshotManifest& kept = snapshot.manifest();
  if (kept.format != kvstore::BlockFormat::kAsInput) return;
  const auto shape = kernels::BlockShape::of(problem);
  const kvstore::BlockCodec codec(kept.format, shape);
  const std::vector<ChunkId> first_kept = first_chunks(kept.problem);
  const std::vector<std::int64_t> documents = problem.starts();
  std::vector<std::byte> blocks(size(problem.kv_heads * codec.encoded_bytes()));
  for (std::size_t d = size(rank.value()); d < starts.size(); d += size(ranks)) {
    const auto [sequence, tokens] = starts[d];
    if (tokens == 0) continue;
    const ChunkId chunk = first_kept[size(sequence)] + tokens / problem.chunk_size - 1;
    const std::int64_t end = documents[d] + tokens;
    const RowRange run{end - problem.chunk_size, end};
    snapshot.read(chunk, blocks, {});
    if (are_rows(blocks, shape, load({&run, 1}))) continue;
    fail_bad_input(fmt::format(
        "{}: cannot be reused: K and V of its chunk {} are not those of tokens {} to {} of the input, though "
        "the token ids are: it is of another model, or was once kept in fewer bits",
        folder, chunk.value(), run.begin, run.end - 1));
  }
}

ReusedChunks::ReusedChunks(const kvstore::Snapshot& snapshot, const AttentionProblem& problem,
                           std::span<const KeptStart> starts)
    : snapshot_(snapshot),
      kv_heads_(problem.kv_heads),
      shape_(kernels::BlockShape::of(problem)),
      codec_(snapshot.manifest().format, shape_) {
  const std::vector<ChunkId> first = first_chunks(problem);
  const std::vector<ChunkId> first_kept = first_chunks(snapshot.manifest().problem);
  kept_.resize(size(first.back().value()));
  for (std::size_t d = 0; d < starts.size(); ++d) {
    for (std::int64_t n = 0; n < starts[d].tokens / problem.chunk_size; ++n) {
      kept_[size(first[d].value() + n)] = first_kept[size(starts[d].sequence)] + n;
    }
  }
}

std::vector<bool> ReusedChunks::chunks() const {
  std::vector<bool> chunks;
  for (const auto& kept : kept_) chunks.push_back(kept.has_value());
  return chunks;
}

void ReusedChunks::load(ChunkId chunk, std::span<std::byte> blocks, std::span<float> record) const {
  const ChunkId kept = kept_[size(chunk.value())].value();
  std::vector<std::byte> encoded(size(kv_heads_ * codec_.encoded_bytes()));
  snapshot_.read(kept, encoded, record);
  const std::size_t encoded_bytes = size(codec_.encoded_bytes()), block_bytes = size(shape_.bytes());
  for (std::size_t head = 0; head < size(kv_heads_); ++head) {
    codec_.decode(std::span(encoded).subspan(head * encoded_bytes, encoded_bytes),
                  blocks.subspan(head * block_bytes, block_bytes));
  }
}

}  // namespace ringmark::runtime
