#include "cluster/inspect/inspect_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cluster/inspect/inspect_options.h"
#include "cluster/options/size_text.h"
#include "cluster/options/text_file.h"
#include "cluster/telemetry/log_folder.h"
#include "kvstore/safetensors_file.h"
#include "kvstore/safetensors_json.h"
#include "kvstore/snapshot.h"
#include "partition/sequence_grid.h"

namespace ringmark::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShownText = 100;        // of names and values that a file brings
constexpr std::size_t kShownSequences = 16;    // the rest is in the JSON
constexpr std::int64_t kReadAtOnce = 1 << 20;  // bytes

void row(std::string_view name, const std::string& value) { fmt::print("{:<14}{}\n", name, value); }

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", extent);
  return fmt::format("[{}]", text);
}

// Bytes read; a file that has become shorter, or cannot be read, is an error.
std::int64_t read_all(const kvstore::SafetensorsFile& file) {
  std::vector<std::byte> buffer;
  std::int64_t bytes = 0;
  for (const kvstore::StoredTensor& tensor : file.header().tensors) {
    if (tensor.shape.empty() || tensor.bytes() == 0) continue;
    const std::int64_t rows = std::max<std::int64_t>(1, kReadAtOnce / tensor.row_bytes());
    for (std::int64_t begin = 0; begin < tensor.shape[0]; begin += rows) {
      const RowRange range{begin, std::min(begin + rows, tensor.shape[0])};
      buffer.resize(static_cast<std::size_t>(range.size() * tensor.row_bytes()));
      file.read_rows(tensor, range, buffer);
      bytes += range.size() * tensor.row_bytes();
    }
  }
  return bytes;
}

Json inspect_file(const InspectOptions& options) {
  const kvstore::SafetensorsFile file(options.path);
  const std::int64_t bytes = options.verify ? read_all(file) : 0;  // a damaged file is an error and nothing else
  Json json = {{"file", options.path}, {"metadata", Json::object()}, {"tensors", Json::array()}};
  for (const auto& [key, value] : file.header().metadata) {
    row("metadata", fmt::format("{} = {}", kvstore::printable(key, kShownText), kvstore::printable(value, kShownText)));
    json["metadata"][key] = value;
  }
  for (const kvstore::StoredTensor& tensor : file.header().tensors) {
    row("tensor", fmt::format("{} {} {}, {}", kvstore::printable(tensor.name, kShownText), tensor.dtype,
                              shape_text(tensor.shape), bytes_text(tensor.bytes())));
    json["tensors"].push_back(
        {{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"bytes", tensor.bytes()}});
  }
  if (!options.verify) return json;
  fmt::print("verified {} tensors, {} bytes read; the file has no checksums\n", file.header().tensors.size(), bytes);
  json["verified"] = {{"tensors", file.header().tensors.size()}, {"bytes", bytes}};
  return json;
}

struct ChunkCount {
  std::int64_t closed = 0;
  std::int64_t growing = 0;
};

ChunkCount count_chunks(const partition::SequenceGrid& grid) {
  ChunkCount count;
  for (const partition::Document& document : grid.documents()) {
    const std::int64_t closed = document.tokens.size() / grid.chunk_size();
    count.closed += closed;
    count.growing += document.chunks.size() - closed;
  }
  return count;
}

std::vector<std::int64_t> lengths_of(const AttentionProblem& problem) {
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 1; i < problem.cu_seqlens.size(); ++i) {
    lengths.push_back(problem.cu_seqlens[i] - problem.cu_seqlens[i - 1]);
  }
  if (problem.cu_seqlens.empty()) lengths.push_back(problem.tokens);
  return lengths;
}

std::string lengths_text(const std::vector<std::int64_t>& lengths) {
  std::string text;
  for (std::size_t i = 0; i < std::min(lengths.size(), kShownSequences); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", lengths[i]);
  }
  return text + (lengths.size() > kShownSequences ? ", ..." : "");
}

void print_snapshot(const kvstore::SnapshotManifest& manifest, const ChunkCount& chunks,
                    const std::vector<std::int64_t>& lengths) {
  const AttentionProblem& p = manifest.problem;
  row("generation", fmt::format("{}", manifest.generation));
  row("layer", fmt::format("{}", manifest.layer));
  row("tokens", fmt::format("{} in {} sequence{} of {}", p.tokens, lengths.size(), lengths.size() == 1 ? "" : "s",
                            lengths_text(lengths)));
  row("heads",
      fmt::format("{} query, {} kv, d {}, {}, scale {}", p.heads, p.kv_heads, p.head_dim, name_of(p.dtype), p.scale));
  row("policy", fmt::format("{}: chunk {}{}, window {}, top {}, sinks {}", name_of(manifest.policy.scorer),
                            p.chunk_size, p.landmark_slots ? " with landmark slot" : "", manifest.policy.window,
                            manifest.policy.topk, manifest.policy.sinks));
  row("chunks",
      fmt::format("{} closed, kept as {}; {} growing", chunks.closed, name_of(manifest.format), chunks.growing));
  row("prefix hashes", manifest.prefixes.hashes.empty() ? "none" : "yes");
  for (const kvstore::SnapshotShard& shard : manifest.shards) {
    row("shard", fmt::format("{}: {} chunks, {}", shard.file, shard.chunks.size(), bytes_text(shard.bytes)));
  }
}

Json snapshot_json(const kvstore::SnapshotManifest& manifest, const ChunkCount& chunks,
                   const std::vector<std::int64_t>& lengths) {
  const AttentionProblem& p = manifest.problem;
  Json json = {{"generation", manifest.generation},
               {"layer", manifest.layer},
               {"tokens", p.tokens},
               {"sequence_lengths", lengths},
               {"heads", p.heads},
               {"kv_heads", p.kv_heads},
               {"head_dim", p.head_dim},
               {"dtype", name_of(p.dtype)},
               {"scale", p.scale},
               {"chunk_size", p.chunk_size},
               {"landmark_slots", p.landmark_slots},
               {"window", manifest.policy.window},
               {"topk", manifest.policy.topk},
               {"sinks", manifest.policy.sinks},
               {"scorer", name_of(manifest.policy.scorer)},
               {"block_format", name_of(manifest.format)},
               {"chunks_closed", chunks.closed},
               {"chunks_growing", chunks.growing},
               {"prefix_hashes", !manifest.prefixes.hashes.empty()},
               {"shards", Json::array()}};
  for (const kvstore::SnapshotShard& shard : manifest.shards) {
    json["shards"].push_back({{"file", shard.file}, {"bytes", shard.bytes}, {"chunks", shard.chunks.size()}});
  }
  return json;
}

Json inspect_snapshot(const InspectOptions& options) {
  const kvstore::Snapshot snapshot = kvstore::Snapshot::open(options.path);
  const kvstore::SnapshotManifest& manifest = snapshot.manifest();
  const auto verified = options.verify ? snapshot.verify() : kvstore::VerifiedSnapshot{};
  const ChunkCount chunks = count_chunks({manifest.problem, manifest.policy});
  const std::vector<std::int64_t> lengths = lengths_of(manifest.problem);
  for (const std::string& fault : snapshot.passed_over()) row("passed over", fault);
  print_snapshot(manifest, chunks, lengths);
  Json json = snapshot_json(manifest, chunks, lengths);
  json["passed_over"] = snapshot.passed_over();
  if (!options.verify) return json;
  fmt::print("verified {} blocks, {} records\n", verified.blocks, verified.records);
  json["verified"] = {{"blocks", verified.blocks}, {"records", verified.records}};
  return json;
}

Json inspect(const InspectOptions& options) {
  if (!std::filesystem::is_directory(options.path)) return inspect_file(options);
  return is_log_folder(options.path) ? inspect_log_folder(options.path) : inspect_snapshot(options);
}

}  // namespace

int run_inspect(const std::vector<std::string>& arguments, const Environment& environment) {
  const InspectOptions options = parse_inspect_options(arguments, environment);
  if (!options.json.empty()) check_text_file(options.json);
  const Json json = inspect(options);
  if (!options.json.empty()) {
    write_text_file(options.json, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  return 0;
}

}  // namespace ringmark::cluster
