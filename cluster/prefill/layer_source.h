// Where the layer of a prefill comes from: a file or the planted generator.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cluster/prefill/position_fields.h"
#include "cluster/prefill/prefill_options.h"
#include "comm/communicator.h"
#include "core/problem.h"
#include "partition/layout.h"
#include "runtime/layer_file.h"
#include "runtime/layer_shard.h"
#include "runtime/planted_layer.h"

namespace ringmark::cluster {

class LayerSource {
 public:
  // Throws Error(kBadInput) when the file or the planted layer cannot be what the options ask for.
  explicit LayerSource(const PrefillOptions& options);

  // The scale has the gain of the position encoding.
  const AttentionProblem& problem() const { return problem_; }
  const AttentionPolicy& policy() const { return policy_; }
  // Null for a planted layer.
  const runtime::LayerFile* file() const { return file_.get(); }
  // Of a file; empty where it has none.
  std::vector<std::int64_t> token_ids() const;
  bool has_retrieval_queries() const { return file_ != nullptr && file_->has_retrieval_queries(); }

  // What it takes to make retrieval queries of hidden states; 0 where they are not.
  std::int64_t calibration_bytes(int threads) const { return file_ != nullptr ? file_->calibration_bytes(threads) : 0; }

  // Whether shards have sink queries, those of StreamingLLM.
  bool caches_sinks() const { return caches_sinks_; }
  // How the shard's rows are rotated; nothing where they are taken as they are.
  std::optional<PositionReport> positions() const;
  runtime::LayerShard shard(const partition::Layout& layout, RankId rank, int threads) const;
  // Of a planted layer: what LoGo selects by.
  std::vector<float> planted_gates(std::span<const TokenId> tokens) const { return planted_->gates(tokens); }
  // Of a file, as they are.
  runtime::LayerShard rows(std::span<const RowRange> tokens) const { return file_->load(tokens); }
  // Collective. None for a file.
  runtime::NeedleCount count_needles(comm::Communicator& ranks, std::span<const TokenId> tokens,
                                     std::span<const float> out) const;

 private:
  void open_file(const PrefillOptions& options);
  void plant(const PrefillOptions& options);
  void apply_policy(const PolicyOptions& options);
  bool caches_sinks(const PrefillOptions& options) const;
  AttentionProblem numbered() const;

  std::unique_ptr<runtime::LayerFile> file_;
  std::unique_ptr<runtime::PlantedLayer> planted_;
  AttentionProblem problem_;
  AttentionPolicy policy_;
  kernels::PositionEncoding encoding_;
  bool caches_sinks_ = false;
};

}  // namespace ringmark::cluster
