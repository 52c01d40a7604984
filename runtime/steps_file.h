// New tokens of kept sequences in a safetensors file: rows of q [T, H, d], k and v [T, Hkv, d], optionally landmark_q;
// `sequence` [T], which sequence each row continues (default: 0), `position` [T], its place there, and `token_ids` [T].
// Described in docs/formats.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "kvstore/safetensors_file.h"
#include "kvstore/snapshot_manifest.h"
#include "runtime/layer_shard.h"
#include "runtime/new_tokens.h"

namespace ringmark::runtime {

class StepsFile {
 public:
  // The first `skip` rows are left out; where the file has positions, so are the first rows that are kept already.
  // Throws Error(kBadInput): unreadable or malformed file, tensors that do not fit the kept layer, sequences that are
  // not there, positions with a gap. Only the header and the tensors of one integer a row are read.
  StepsFile(const std::string& path, const kvstore::SnapshotManifest& kept, std::int64_t skip);

  std::int64_t rows() const { return static_cast<std::int64_t>(sequences_.size()); }
  // The first row that is new.
  std::int64_t first_new() const { return first_new_; }
  bool has_positions() const { return !positions_.empty(); }
  bool has_retrieval_queries() const { return has_retrieval_queries_; }
  // By sequence: what is kept of it and its new rows.
  const std::vector<std::int64_t>& final_lengths() const { return final_lengths_; }

  // Throws Error(kBadInput) naming the tensor and the row of a value that is NaN or infinite.
  LayerShard load(RowRange rows) const;
  // loaded: load(rows), which outlives the view.
  NewTokens new_tokens(RowRange rows, const LayerShard& loaded) const;
  // Of q and k of these rows: two files whose rows have the same are not told apart.
  std::uint32_t checksum(RowRange rows) const;

 private:
  void check_against(const kvstore::SnapshotManifest& kept);
  void check_sequences(const std::vector<std::int64_t>& lengths) const;
  void find_first_new(const std::vector<std::int64_t>& lengths, std::int64_t skip);

  kvstore::SafetensorsFile file_;
  AttentionProblem problem_;
  bool has_retrieval_queries_ = false;
  std::vector<std::int64_t> sequences_;
  std::vector<std::int64_t> positions_;  // empty: every row is new
  std::vector<std::int64_t> token_ids_;  // empty: not known
  std::vector<std::int64_t> final_lengths_;
  std::int64_t first_new_ = 0;
};

}  // namespace ringmark::runtime
