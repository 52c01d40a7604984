#include "runtime/layer_file.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstring>

#include "core/error.h"

namespace ringmark::runtime {
namespace {

using kvstore::SafetensorsFile;
using kvstore::StoredTensor;

[[noreturn]] void fail(const SafetensorsFile& file, const std::string& text) {
  fail_bad_input(fmt::format("{}: {}", file.path(), text));
}

// A metadata entry read as a number; from_chars takes neither blanks nor trailing text.
template <class Number>
std::optional<Number> metadata(const SafetensorsFile& file, const std::string& key) {
  const auto entry = file.header().metadata.find(key);
  if (entry == file.header().metadata.end()) return std::nullopt;
  const std::string& text = entry->second;
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail(file, fmt::format("metadata {} = '{:.40}' is not a number", key, text));
  }
  return value;
}

bool metadata_flag(const SafetensorsFile& file, const std::string& key) {
  const auto entry = file.header().metadata.find(key);
  if (entry == file.header().metadata.end()) return false;
  if (entry->second == "1" || entry->second == "true") return true;
  if (entry->second == "0" || entry->second == "false") return false;
  fail(file, fmt::format("metadata {} = '{:.40}' is neither 0 nor 1", key, entry->second));
}

DType dtype_of(const SafetensorsFile& file, const StoredTensor& tensor) {
  if (tensor.dtype == "F32") return DType::kFloat32;
  if (tensor.dtype == "BF16") return DType::kBfloat16;
  if (tensor.dtype == "F16") return DType::kFloat16;
  fail(file, fmt::format("tensor {} has dtype {}, not BF16, F16 or F32", tensor.name, tensor.dtype));
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

void expect(const SafetensorsFile& file, const StoredTensor& tensor, const std::vector<std::int64_t>& shape,
            const std::string& dtype) {
  if (tensor.shape != shape) {
    fail(file, fmt::format("tensor {} has shape {}, not {}", tensor.name, shape_text(tensor.shape), shape_text(shape)));
  }
  if (tensor.dtype != dtype) {
    fail(file, fmt::format("tensor {} has dtype {}, but q has {}", tensor.name, tensor.dtype, dtype));
  }
}

std::vector<std::int64_t> read_cu_seqlens(const SafetensorsFile& file, const StoredTensor& tensor) {
  if (tensor.shape.size() != 1 || tensor.shape[0] < 2) {
    fail(file, fmt::format("tensor cu_seqlens has shape {}, not [documents + 1]", shape_text(tensor.shape)));
  }
  if (tensor.dtype != "I32" && tensor.dtype != "I64") {
    fail(file, fmt::format("tensor cu_seqlens has dtype {}, not I32 or I64", tensor.dtype));
  }
  const bool narrow = tensor.dtype == "I32";
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
  file.read_rows(tensor, {0, tensor.shape[0]}, bytes);
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < tensor.shape[0]; ++i) {
    std::int32_t small = 0;
    std::int64_t wide = 0;
    if (narrow) std::memcpy(&small, bytes.data() + 4 * i, 4);
    if (!narrow) std::memcpy(&wide, bytes.data() + 8 * i, 8);
    starts.push_back(narrow ? small : wide);
  }
  return starts;
}

// The first row of [rows, width] that holds NaN or an infinity, or -1.
std::int64_t first_nonfinite_row(const std::vector<std::byte>& bytes, DType dtype, std::int64_t width) {
  const std::int64_t count = static_cast<std::int64_t>(bytes.size()) / size_of(dtype);
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::int64_t begin = 0; begin < count; begin += width) {
    widen(bytes.data() + begin * size_of(dtype), dtype, width, row.data());
    float sum = 0.0f;  // x * 0 is 0 for finite x and NaN otherwise
    for (const float x : row) sum += x * 0.0f;
    if (std::isnan(sum)) return begin / width;
  }
  return -1;
}

}  // namespace

LayerFile::LayerFile(const std::string& path, const LayerOverrides& overrides) : file_(path) {
  const StoredTensor& q = file_.tensor("q");
  const StoredTensor& k = file_.tensor("k");
  if (q.shape.size() != 3)
    fail(file_, fmt::format("tensor q has shape {}, not [tokens, heads, head_dim]", shape_text(q.shape)));
  if (k.shape.size() != 3)
    fail(file_, fmt::format("tensor k has shape {}, not [tokens, kv_heads, head_dim]", shape_text(k.shape)));
  problem_.dtype = dtype_of(file_, q);
  problem_.tokens = q.shape[0];
  problem_.heads = q.shape[1];
  problem_.head_dim = q.shape[2];
  problem_.kv_heads = k.shape[1];
  if (problem_.tokens < 1 || problem_.heads < 1 || problem_.head_dim < 1) {
    fail(file_, fmt::format("tensor q is empty: shape {}", shape_text(q.shape)));
  }
  const std::vector<std::int64_t> kv_shape = {problem_.tokens, problem_.kv_heads, problem_.head_dim};
  expect(file_, k, kv_shape, q.dtype);
  expect(file_, file_.tensor("v"), kv_shape, q.dtype);
  has_retrieval_queries_ = file_.header().find("landmark_q") != nullptr;
  if (has_retrieval_queries_) expect(file_, file_.tensor("landmark_q"), q.shape, q.dtype);

  problem_.chunk_size = overrides.chunk_size.value_or(metadata<std::int64_t>(file_, "chunk_size").value_or(64));
  problem_.landmark_slots = metadata_flag(file_, "landmark_slots");
  const double usual_scale = 1.0 / std::sqrt(static_cast<double>(problem_.head_dim));
  problem_.scale = static_cast<float>(overrides.scale.value_or(metadata<double>(file_, "scale").value_or(usual_scale)));
  if (overrides.cu_seqlens) {
    problem_.cu_seqlens = *overrides.cu_seqlens;
  } else if (const StoredTensor* documents = file_.header().find("cu_seqlens")) {
    problem_.cu_seqlens = read_cu_seqlens(file_, *documents);
  }
  const AttentionPolicy usual;
  policy_.window = overrides.window.value_or(metadata<std::int64_t>(file_, "window").value_or(usual.window));
  policy_.topk = overrides.topk.value_or(metadata<std::int64_t>(file_, "topk").value_or(usual.topk));
  policy_.sinks = overrides.sinks.value_or(metadata<std::int64_t>(file_, "sinks").value_or(usual.sinks));
  try {
    problem_.validate();
    policy_.validate(problem_);
  } catch (const Error& error) {
    fail(file_, error.what());
  }
}

LayerShard LayerFile::load(const partition::Layout& layout, RankId rank) const {
  LayerShard shard(problem_, layout.token_count(rank), has_retrieval_queries_);
  const std::vector<Range<TokenId>> runs = layout.token_runs(rank);
  const auto read = [&](const char* name, std::vector<std::byte>& bytes) {
    const StoredTensor& tensor = file_.tensor(name);
    std::span<std::byte> rest = bytes;
    for (const Range<TokenId>& run : runs) {
      const auto run_bytes = static_cast<std::size_t>(run.size() * tensor.row_bytes());
      file_.read_rows(tensor, {run.begin.value(), run.end.value()}, rest.first(run_bytes));
      rest = rest.subspan(run_bytes);
    }
    const std::int64_t row = first_nonfinite_row(bytes, problem_.dtype, tensor.shape[1] * tensor.shape[2]);
    if (row < 0) return;
    const TokenId token = layout.tokens_of(rank)[static_cast<std::size_t>(row)];
    fail(file_, fmt::format("tensor {} holds NaN or infinity at token {}", name, token.value()));
  };
  read("q", shard.q());
  read("k", shard.k());
  read("v", shard.v());
  if (has_retrieval_queries_) read("landmark_q", shard.retrieval_q());
  return shard;
}

}  // namespace ringmark::runtime
