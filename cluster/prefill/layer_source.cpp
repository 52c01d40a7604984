#include "cluster/prefill/layer_source.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
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
  overrides.scorer = Scorer::kNone;  // the policy of the options comes after
  overrides.logit_cap = options.logits.cap;
  if (options.logits.alibi) overrides.alibi = true;
  overrides.softmax_zero = options.logits.softmax_zero;
  if (!options.cu_seqlens.empty()) overrides.cu_seqlens = options.cu_seqlens;
  file_ = std::make_unique<runtime::LayerFile>(options.input, overrides);
  problem_ = file_->problem();
  policy_ = file_->policy();
  apply_policy(options.policy);
  file_->take_landmark_queries(options.landmark_query);
  if (options.calibrate) file_->take_calibration();
  encoding_ = options.positions;
  if (policy_.landmark_positions == LandmarkPositions::kStingy && file_->has_positions()) {
    fail_bad_input("landmark-positions = stingy does not go with the tensor positions of the input; limit: true");
  }
  runtime::check_encoding(encoding_, numbered(), file_->has_positions());
  problem_.scale = static_cast<float>(double{problem_.scale} * kernels::scale_gain(encoding_));
  caches_sinks_ = caches_sinks(options);
}

// Sinks stand at their place in the cache where they and the window are all that a rotated query sees, unless it is
// asked otherwise.
bool LayerSource::caches_sinks(const PrefillOptions& options) const {
  const bool usual = encoding_.rotates() && policy_.sinks > 0 && policy_.edge == WindowEdge::kToken;
  const SinkPositions positions =
      options.logits.sink_positions.value_or(usual ? SinkPositions::kCache : SinkPositions::kText);
  if (positions == SinkPositions::kText) return false;
  const auto refuse = [](const std::string& why) { fail_bad_input("sink-positions = cache " + why); };
  if (policy_.sinks == 0) refuse("has no meaning with sinks = 0");
  if (policy_.selects())
    refuse(fmt::format("does not go with scorer = {}: the chunks between are not cut out", name_of(policy_.scorer)));
  if (problem_.alibi) refuse("does not go with alibi = 1, which counts distances in the text");
  if (file_->has_positions()) refuse("does not go with the tensor positions of the input; limit: text");
  return true;
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
  problem_.logit_cap = static_cast<float>(options.logits.cap.value_or(0.0));
  problem_.alibi = options.logits.alibi;
  if (options.logits.softmax_zero) problem_.sink_logits.assign(static_cast<std::size_t>(planted.heads), 0.0f);
  problem_.validate();
  apply_policy(options.policy);
  // A policy that chooses nothing is asked for the needles that a choice by hils could find.
  AttentionPolicy placing = policy_;
  if (!is_sparse_engine_policy(options.policy.name)) placing.scorer = Scorer::kHils;
  planted_ = std::make_unique<runtime::PlantedLayer>(
      problem_, placing, runtime::PlantedOptions{planted.needles, planted.agreement, planted.topics, options.seed});
}

void LayerSource::apply_policy(const PolicyOptions& options) {
  if (is_sparse_engine_policy(options.name)) {
    policy_ = options.apply(policy_);
  } else {
    policy_.scorer = Scorer::kNone;
  }
  policy_.validate(problem_);
}

// The problem by which positions are counted: in a cache every slot has its own, a landmark like any other.
AttentionProblem LayerSource::numbered() const {
  AttentionProblem problem = problem_;
  problem.landmark_slots &= policy_.landmark_positions == LandmarkPositions::kTrue;
  return problem;
}

std::vector<std::int64_t> LayerSource::token_ids() const {
  return file_ != nullptr ? file_->token_ids() : std::vector<std::int64_t>{};
}

std::optional<PositionReport> LayerSource::positions() const {
  if (!encoding_.rotates()) return std::nullopt;
  return PositionReport{encoding_, file_->has_positions(), caches_sinks_};
}

runtime::LayerShard LayerSource::shard(const partition::Layout& layout, RankId rank, int threads) const {
  if (file_ == nullptr) return planted_->make_shard(layout, rank, threads);
  runtime::LayerShard shard = file_->load(layout, rank, threads);
  if (encoding_.rotates()) {
    const std::vector<TokenId> tokens = layout.tokens_of(rank);
    const auto positions =
        file_->has_positions() ? file_->positions(layout, rank) : runtime::positions_in_documents(numbered(), tokens);
    if (caches_sinks_) {
      runtime::make_sink_queries(encoding_, problem_, {problem_, policy_}, tokens, shard, threads);
    }
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
