// One attention layer in a safetensors file: tensors q [N, H, d], k and v [N, Hkv, d], optionally landmark_q [N, H, d]
// (retrieval queries; the row of a chunk's last slot is its landmark query), cu_seqlens [documents + 1], token_ids [N],
// positions [N] and sink_logits [H]; metadata chunk_size, window, topk, sinks, scale, landmark_slots, logit_cap, alibi
// as defaults. Described in docs/formats.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/problem.h"
#include "kvstore/safetensors_file.h"
#include "partition/layout.h"
#include "runtime/landmark_queries.h"
#include "runtime/layer_shard.h"

namespace ringmark::runtime {

// What the caller fixes; the rest comes from the file's metadata, then from the defaults of core/problem.h.
struct LayerOverrides {
  std::optional<std::int64_t> chunk_size = {}, window = {}, topk = {}, sinks = {};
  std::optional<double> scale = {};
  std::optional<std::vector<std::int64_t>> cu_seqlens = {};
  std::optional<Scorer> scorer = {};
  std::optional<double> logit_cap = {};
  std::optional<bool> alibi = {};
  bool softmax_zero = false;  // a sink logit of 0 for every head; not beside the tensor
};

class LayerFile {
 public:
  // Throws Error(kBadInput): unreadable or malformed file, missing tensor, dtypes or shapes that do not fit together,
  // metadata that is no number. Nothing but the header is read.
  LayerFile(const std::string& path, const LayerOverrides& overrides);

  // Validated.
  const AttentionProblem& problem() const { return problem_; }
  // Validated.
  const AttentionPolicy& policy() const { return policy_; }
  bool has_retrieval_queries() const { return has_retrieval_queries_; }

  // Of all tokens; empty when the file has none.
  std::vector<std::int64_t> token_ids() const;

  bool has_positions() const { return file_.header().find("positions") != nullptr; }
  // The tensor `positions` of the rank's rows. Throws Error(kBadInput) naming the token of one that is below 0 or above
  // kernels::kMaxPosition.
  std::vector<std::int64_t> positions(const partition::Layout& layout, RankId rank) const;

  // Is there a tensor `gates`, [N, H, 3] of any float dtype? Throws Error(kBadInput) for one of another form.
  bool has_gates() const;
  // Its rows of the rank, widened. Throws Error(kBadInput) naming the token of a value that is NaN or infinite.
  std::vector<float> gates(const partition::Layout& layout, RankId rank) const;

  // Throws Error(kBadInput) when the file has not the tensor that they come from. To be called before load().
  void take_landmark_queries(LandmarkQuery from);

  // Makes the retrieval queries of hidden states; throws Error(kBadInput) when the file has not what that needs. To be
  // called before load().
  void take_calibration();
  // Bytes that it takes while a layer is loaded.
  std::int64_t calibration_bytes(int threads) const;

  // The rank's rows, and its landmark queries. Throws Error(kBadInput) naming the tensor and the token of a value that
  // is NaN or infinite.
  LayerShard load(const partition::Layout& layout, RankId rank, int threads = 1) const;
  // The rows of these tokens, in the same way, without what is made or brought for whole chunks: landmark queries,
  // retrieval queries of hidden states.
  LayerShard load(std::span<const RowRange> tokens) const;

 private:
  kvstore::SafetensorsFile file_;
  AttentionProblem problem_;
  AttentionPolicy policy_;
  bool has_retrieval_queries_ = false;
  bool calibrates_ = false;
  LandmarkQuery landmark_query_ = LandmarkQuery::kSlot;
};

}  // namespace ringmark::runtime
