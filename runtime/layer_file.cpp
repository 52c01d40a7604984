#include "runtime/layer_file.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "kernels/positions/encoding.h"
#include "runtime/layer_tensors.h"
#include "runtime/query_calibration.h"

namespace ringmark::runtime {
namespace {

using kvstore::SafetensorsFile;
using kvstore::StoredTensor;

std::vector<std::int64_t> read_cu_seqlens(const SafetensorsFile& file, const StoredTensor& tensor) {
  if (tensor.shape.size() != 1 || tensor.shape[0] < 2) {
    fail_in(file, fmt::format("tensor cu_seqlens has shape {}, not [documents + 1]", shape_text(tensor.shape)));
  }
  expect_integers(file, tensor);
  return read_integers(file, tensor);
}

std::vector<float> sink_logits_of(const SafetensorsFile& file, std::int64_t heads, bool softmax_zero) {
  const StoredTensor* const tensor = file.header().find("sink_logits");
  if (tensor == nullptr) return std::vector<float>(softmax_zero ? static_cast<std::size_t>(heads) : 0, 0.0f);
  if (softmax_zero) fail_in(file, "softmax-zero does not go with the tensor sink_logits, which says them already");
  expect_shape(file, *tensor, {heads});
  return read_floats(file, *tensor);
}

std::vector<RowRange> rows_of(const partition::Layout& layout, RankId rank) {
  std::vector<RowRange> rows;
  for (const Range<TokenId>& run : layout.token_runs(rank)) rows.push_back({run.begin.value(), run.end.value()});
  return rows;
}

}  // namespace

LayerFile::LayerFile(const std::string& path, const LayerOverrides& overrides) : file_(path) {
  const LayerTensors layer = check_layer_tensors(file_);
  problem_.dtype = layer.dtype;
  problem_.tokens = layer.rows;
  problem_.heads = layer.heads;
  problem_.head_dim = layer.head_dim;
  problem_.kv_heads = layer.kv_heads;
  has_retrieval_queries_ = layer.has_retrieval_queries;
  for (const char* const name : {"token_ids", "positions"}) {
    const StoredTensor* const ids = file_.header().find(name);
    if (ids == nullptr) continue;
    expect_shape(file_, *ids, {problem_.tokens});
    expect_integers(file_, *ids);
  }

  problem_.chunk_size = overrides.chunk_size.value_or(metadata_integer(file_, "chunk_size").value_or(64));
  problem_.landmark_slots = metadata_flag(file_, "landmark_slots").value_or(false);
  const double usual_scale = 1.0 / std::sqrt(static_cast<double>(problem_.head_dim));
  problem_.scale = static_cast<float>(overrides.scale.value_or(metadata_real(file_, "scale").value_or(usual_scale)));
  problem_.logit_cap =
      static_cast<float>(overrides.logit_cap.value_or(metadata_real(file_, "logit_cap").value_or(0.0)));
  problem_.alibi = overrides.alibi.value_or(metadata_flag(file_, "alibi").value_or(false));
  problem_.sink_logits = sink_logits_of(file_, problem_.heads, overrides.softmax_zero);
  if (overrides.cu_seqlens) {
    problem_.cu_seqlens = *overrides.cu_seqlens;
  } else if (const StoredTensor* documents = file_.header().find("cu_seqlens")) {
    problem_.cu_seqlens = read_cu_seqlens(file_, *documents);
  }
  const AttentionPolicy usual;
  policy_.window = overrides.window.value_or(metadata_integer(file_, "window").value_or(usual.window));
  policy_.topk = overrides.topk.value_or(metadata_integer(file_, "topk").value_or(usual.topk));
  policy_.sinks = overrides.sinks.value_or(metadata_integer(file_, "sinks").value_or(usual.sinks));
  policy_.scorer = overrides.scorer.value_or(usual.scorer);
  try {
    problem_.validate();
    policy_.validate(problem_);
  } catch (const Error& error) {
    fail_in(file_, error.what());
  }
}

std::vector<std::int64_t> LayerFile::token_ids() const {
  const StoredTensor* const ids = file_.header().find("token_ids");
  return ids != nullptr ? read_integers(file_, *ids) : std::vector<std::int64_t>{};
}

std::vector<std::int64_t> LayerFile::positions(const partition::Layout& layout, RankId rank) const {
  const std::vector<RowRange> rows = rows_of(layout, rank);
  std::vector<std::int64_t> positions = read_integers(file_, file_.tensor("positions"), rows);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] >= 0 && positions[i] <= kernels::kMaxPosition) continue;
    fail_in(file_, fmt::format("tensor positions holds {} at token {}, outside [0, {}]", positions[i],
                               row_of(rows, static_cast<std::int64_t>(i)), kernels::kMaxPosition));
  }
  return positions;
}

bool LayerFile::has_gates() const {
  const StoredTensor* const gates = file_.header().find("gates");
  if (gates == nullptr) return false;
  expect_shape(file_, *gates, {problem_.tokens, problem_.heads, 3});
  dtype_of(file_, *gates);
  return true;
}

std::vector<float> LayerFile::gates(const partition::Layout& layout, RankId rank) const {
  const StoredTensor& tensor = file_.tensor("gates");
  const DType dtype = dtype_of(file_, tensor);
  const std::vector<RowRange> rows = rows_of(layout, rank);
  const std::int64_t width = problem_.heads * 3;
  std::vector<std::byte> bytes(static_cast<std::size_t>(layout.token_count(rank) * tensor.row_bytes()));
  read_runs(file_, tensor, rows, bytes);
  const std::int64_t bad = first_nonfinite_row(bytes, dtype, width);
  if (bad >= 0) fail_in(file_, fmt::format("tensor gates holds NaN or infinity at token {}", row_of(rows, bad)));
  std::vector<float> gates(static_cast<std::size_t>(layout.token_count(rank) * width));
  widen(bytes.data(), dtype, std::ssize(gates), gates.data());
  return gates;
}

void LayerFile::take_landmark_queries(LandmarkQuery from) {
  check_landmark_queries(file_, problem_, from);
  landmark_query_ = from;
}

void LayerFile::take_calibration() {
  check_calibration(file_, problem_);
  calibrates_ = has_retrieval_queries_ = true;
}

std::int64_t LayerFile::calibration_bytes(int threads) const {
  return calibrates_ ? runtime::calibration_bytes(file_, problem_, threads) : 0;
}

LayerShard LayerFile::load(const partition::Layout& layout, RankId rank, int threads) const {
  const std::vector<RowRange> rows = rows_of(layout, rank);
  LayerShard shard = load(rows);
  if (calibrates_) calibrate_retrieval_queries(file_, problem_, rows, shard, threads);
  const partition::SequenceGrid grid(problem_, policy_);
  read_landmark_queries(file_, problem_, landmark_query_, grid, layout.chunks_of(rank), shard);
  return shard;
}

LayerShard LayerFile::load(std::span<const RowRange> tokens) const {
  std::int64_t rows = 0;
  for (const RowRange& run : tokens) rows += run.size();
  LayerShard shard(problem_, rows, has_retrieval_queries_);
  read_layer_rows(file_, tokens, "token", has_retrieval_queries_ && !calibrates_, shard);
  return shard;
}

}  // namespace ringmark::runtime
