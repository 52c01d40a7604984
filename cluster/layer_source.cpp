#include "cluster/layer_source.h"

#include <cmath>

#include "runtime/landmark_queries.h"
#include "runtime/layer_positions.h"

namespace ringmark::cluster {

LayerSource::LayerSource(const PrefillOptions& options) {
  if (options.planted) {
    plant(options);
  } else {
    open_file(options);
  }
}

void LayerSource::open_file(const PrefillOptions& options) {
  runtime::LayerOverrides overrides{options.chunk,        options.policy.window, options.policy.topk,
                                    options.policy.sinks, options.scale,         {}};
  if (!options.cu_seqlens.empty()) overrides.cu_seqlens = options.cu_seqlens;
  file_ = std::make_unique<runtime::LayerFile>(options.input, overrides);
  problem_ = file_->problem();
  policy_ = file_->policy();
  apply_policy(options.policy);
  file_->take_landmark_queries(options.landmark_query);
  encoding_ = options.positions;
  runtime::check_encoding(encoding_, problem_, file_->has_positions());
  problem_.scale = static_cast<float>(double{problem_.scale} * kernels::scale_gain(encoding_));
}

void LayerSource::plant(const PrefillOptions& options) {
  const PlantedOptions& planted = *options.planted;
  problem_.tokens = planted.tokens;
  problem_.heads = planted.heads;
  problem_.kv_heads = planted.kv_heads;
  problem_.head_dim = planted.head_dim;
  problem_.chunk_size = options.chunk.value_or(64);
  problem_.dtype = planted.dtype;
  problem_.landmark_slots = true;
  problem_.cu_seqlens = options.cu_seqlens;
  const double usual_scale = 1.0 / std::sqrt(static_cast<double>(planted.head_dim));
  problem_.scale = static_cast<float>(options.scale.value_or(usual_scale));
  problem_.validate();
  apply_policy(options.policy);
  planted_ = std::make_unique<runtime::PlantedLayer>(
      problem_, policy_, runtime::PlantedOptions{planted.needles, planted.agreement, planted.topics, options.seed});
}

void LayerSource::apply_policy(const PolicyOptions& options) {
  if (is_sparse_engine_policy(options.name)) policy_ = options.apply(policy_);
  policy_.validate(problem_);
}

std::vector<std::int64_t> LayerSource::token_ids() const {
  return file_ != nullptr ? file_->token_ids() : std::vector<std::int64_t>{};
}

std::optional<PositionReport> LayerSource::positions() const {
  if (!encoding_.rotates()) return std::nullopt;
  return PositionReport{encoding_, file_->has_positions()};
}

runtime::LayerShard LayerSource::shard(const partition::Layout& layout, RankId rank, int threads) const {
  if (file_ == nullptr) return planted_->make_shard(layout, rank, threads);
  runtime::LayerShard shard = file_->load(layout, rank);
  if (encoding_.rotates()) {
    const std::vector<TokenId> tokens = layout.tokens_of(rank);
    const auto positions =
        file_->has_positions() ? file_->positions(layout, rank) : runtime::positions_in_documents(problem_, tokens);
    runtime::rotate_rows(encoding_, tokens, positions, shard, threads);
    const partition::SequenceGrid grid(problem_, policy_);
    runtime::rotate_landmark_queries(encoding_, grid, layout, rank, positions, shard, threads);
  }
  return shard;
}

runtime::NeedleCount LayerSource::count_needles(comm::Communicator& ranks, std::span<const TokenId> tokens,
                                                std::span<const float> out) const {
  return planted_ != nullptr ? planted_->count_recovered(ranks, tokens, out) : runtime::NeedleCount{};
}

}  // namespace ringmark::cluster
