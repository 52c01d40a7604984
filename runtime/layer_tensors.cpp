#include "runtime/layer_tensors.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "core/error.h"

namespace ringmark::runtime {
namespace {

using kvstore::SafetensorsFile;
using kvstore::StoredTensor;

// A metadata entry read as a number; from_chars takes neither blanks nor trailing text.
template <class Number>
std::optional<Number> metadata(const SafetensorsFile& file, const std::string& key) {
  const auto entry = file.header().metadata.find(key);
  if (entry == file.header().metadata.end()) return std::nullopt;
  const std::string& text = entry->second;
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail_in(file, fmt::format("metadata {} = '{:.40}' is not a number", key, text));
  }
  return value;
}

}  // namespace

void fail_in(const SafetensorsFile& file, const std::string& text) {
  fail_bad_input(fmt::format("{}: {}", file.path(), text));
}

DType dtype_of(const SafetensorsFile& file, const StoredTensor& tensor) {
  if (tensor.dtype == "F32") return DType::kFloat32;
  if (tensor.dtype == "BF16") return DType::kBfloat16;
  if (tensor.dtype == "F16") return DType::kFloat16;
  fail_in(file, fmt::format("tensor {} has dtype {}, not BF16, F16 or F32", tensor.name, tensor.dtype));
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

void expect_shape(const SafetensorsFile& file, const StoredTensor& tensor, const std::vector<std::int64_t>& shape) {
  if (tensor.shape == shape) return;
  fail_in(file,
          fmt::format("tensor {} has shape {}, not {}", tensor.name, shape_text(tensor.shape), shape_text(shape)));
}

void expect_tensor(const SafetensorsFile& file, const StoredTensor& tensor, const std::vector<std::int64_t>& shape,
                   const std::string& dtype_of_q) {
  expect_shape(file, tensor, shape);
  if (tensor.dtype == dtype_of_q) return;
  fail_in(file, fmt::format("tensor {} has dtype {}, but q has {}", tensor.name, tensor.dtype, dtype_of_q));
}

void expect_integers(const SafetensorsFile& file, const StoredTensor& tensor) {
  if (tensor.dtype == "I32" || tensor.dtype == "I64") return;
  fail_in(file, fmt::format("tensor {} has dtype {}, not I32 or I64", tensor.name, tensor.dtype));
}

void read_runs(const SafetensorsFile& file, const StoredTensor& tensor, std::span<const RowRange> runs,
               std::span<std::byte> out) {
  for (const RowRange& run : runs) {
    const auto bytes = static_cast<std::size_t>(run.size() * tensor.row_bytes());
    file.read_rows(tensor, run, out.first(bytes));
    out = out.subspan(bytes);
  }
}

std::vector<std::int64_t> read_integers(const SafetensorsFile& file, const StoredTensor& tensor) {
  return read_integers(file, tensor, std::array{RowRange{0, tensor.shape[0]}});
}

std::vector<std::int64_t> read_integers(const SafetensorsFile& file, const StoredTensor& tensor,
                                        std::span<const RowRange> runs) {
  std::int64_t count = 0;
  for (const RowRange& run : runs) count += run.size();
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * tensor.row_bytes()));
  read_runs(file, tensor, runs, bytes);
  const bool narrow = tensor.dtype == "I32";
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int32_t small = 0;
    std::int64_t wide = 0;
    if (narrow) std::memcpy(&small, bytes.data() + 4 * i, 4);
    if (!narrow) std::memcpy(&wide, bytes.data() + 8 * i, 8);
    numbers.push_back(narrow ? small : wide);
  }
  return numbers;
}

std::vector<float> read_floats(const SafetensorsFile& file, const StoredTensor& tensor,
                               std::span<const RowRange> runs) {
  const DType dtype = dtype_of(file, tensor);
  std::int64_t rows = 0;
  for (const RowRange& run : runs) rows += run.size();
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * tensor.row_bytes()));
  read_runs(file, tensor, runs, bytes);
  std::vector<float> values(bytes.size() / static_cast<std::size_t>(size_of(dtype)));
  widen(bytes.data(), dtype, std::ssize(values), values.data());
  return values;
}

std::vector<float> read_floats(const SafetensorsFile& file, const StoredTensor& tensor) {
  return read_floats(file, tensor, std::array{RowRange{0, tensor.shape[0]}});
}

std::optional<std::int64_t> metadata_integer(const SafetensorsFile& file, const std::string& key) {
  return metadata<std::int64_t>(file, key);
}

std::optional<double> metadata_real(const SafetensorsFile& file, const std::string& key) {
  return metadata<double>(file, key);
}

std::optional<bool> metadata_flag(const SafetensorsFile& file, const std::string& key) {
  const auto entry = file.header().metadata.find(key);
  if (entry == file.header().metadata.end()) return std::nullopt;
  if (entry->second == "1" || entry->second == "true") return true;
  if (entry->second == "0" || entry->second == "false") return false;
  fail_in(file, fmt::format("metadata {} = '{:.40}' is neither 0 nor 1", key, entry->second));
}

LayerTensors check_layer_tensors(const SafetensorsFile& file) {
  const StoredTensor& q = file.tensor("q");
  const StoredTensor& k = file.tensor("k");
  if (q.shape.size() != 3) {
    fail_in(file, fmt::format("tensor q has shape {}, not [tokens, heads, head_dim]", shape_text(q.shape)));
  }
  if (k.shape.size() != 3) {
    fail_in(file, fmt::format("tensor k has shape {}, not [tokens, kv_heads, head_dim]", shape_text(k.shape)));
  }
  const LayerTensors layer{dtype_of(file, q), q.shape[0], q.shape[1],
                           k.shape[1],        q.shape[2], file.header().find("landmark_q") != nullptr};
  if (layer.rows < 1 || layer.heads < 1 || layer.head_dim < 1) {
    fail_in(file, fmt::format("tensor q is empty: shape {}", shape_text(q.shape)));
  }
  const std::vector<std::int64_t> kv_shape = {layer.rows, layer.kv_heads, layer.head_dim};
  expect_tensor(file, k, kv_shape, q.dtype);
  expect_tensor(file, file.tensor("v"), kv_shape, q.dtype);
  if (layer.has_retrieval_queries) expect_tensor(file, file.tensor("landmark_q"), q.shape, q.dtype);
  return layer;
}

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

std::int64_t row_of(std::span<const RowRange> runs, std::int64_t index) {
  for (const RowRange& run : runs) {
    if (index < run.size()) return run.begin + index;
    index -= run.size();
  }
  return -1;
}

void read_layer_rows(const SafetensorsFile& file, std::span<const RowRange> runs, std::string_view row_word,
                     bool has_retrieval_queries, LayerShard& shard) {
  const DType dtype = shard.queries().dtype;
  const auto read = [&](const char* name, std::vector<std::byte>& bytes) {
    const StoredTensor& tensor = file.tensor(name);
    read_runs(file, tensor, runs, bytes);
    const std::int64_t row = first_nonfinite_row(bytes, dtype, tensor.shape[1] * tensor.shape[2]);
    if (row < 0) return;
    fail_in(file, fmt::format("tensor {} holds NaN or infinity at {} {}", name, row_word, row_of(runs, row)));
  };
  read("q", shard.q());
  read("k", shard.k());
  read("v", shard.v());
  if (has_retrieval_queries) read("landmark_q", shard.retrieval_q());
}

}  // namespace ringmark::runtime
