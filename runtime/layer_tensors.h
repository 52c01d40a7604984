// What files with rows of q, k, v and landmark_q have in common: their checks, and reading rows of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/ids.h"
#include "kvstore/safetensors_file.h"
#include "runtime/layer_shard.h"

namespace ringmark::runtime {

// Error(kBadInput) with the path in front.
[[noreturn]] void fail_in(const kvstore::SafetensorsFile& file, const std::string& text);

// Throws Error(kBadInput) for a tensor of another dtype than BF16, F16 and F32.
DType dtype_of(const kvstore::SafetensorsFile& file, const kvstore::StoredTensor& tensor);

std::string shape_text(const std::vector<std::int64_t>& shape);
void expect_shape(const kvstore::SafetensorsFile& file, const kvstore::StoredTensor& tensor,
                  const std::vector<std::int64_t>& shape);

// That shape, and the dtype of q.
void expect_tensor(const kvstore::SafetensorsFile& file, const kvstore::StoredTensor& tensor,
                   const std::vector<std::int64_t>& shape, const std::string& dtype_of_q);

// I32 or I64.
void expect_integers(const kvstore::SafetensorsFile& file, const kvstore::StoredTensor& tensor);
std::vector<std::int64_t> read_integers(const kvstore::SafetensorsFile& file, const kvstore::StoredTensor& tensor);
// Of these rows, one run behind the other.
std::vector<std::int64_t> read_integers(const kvstore::SafetensorsFile& file, const kvstore::StoredTensor& tensor,
                                        std::span<const RowRange> runs);

// These rows of a tensor, one run behind the other.
void read_runs(const kvstore::SafetensorsFile& file, const kvstore::StoredTensor& tensor,
               std::span<const RowRange> runs, std::span<std::byte> out);

// All elements of a BF16, F16 or F32 tensor, widened; and of these rows, one run behind the other.
std::vector<float> read_floats(const kvstore::SafetensorsFile& file, const kvstore::StoredTensor& tensor);
std::vector<float> read_floats(const kvstore::SafetensorsFile& file, const kvstore::StoredTensor& tensor,
                               std::span<const RowRange> runs);

// Entries of the metadata; nothing where there is none. Throw Error(kBadInput) for one that is not what it should be.
std::optional<std::int64_t> metadata_integer(const kvstore::SafetensorsFile& file, const std::string& key);
std::optional<double> metadata_real(const kvstore::SafetensorsFile& file, const std::string& key);
std::optional<bool> metadata_flag(const kvstore::SafetensorsFile& file, const std::string& key);

struct LayerTensors {
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  bool has_retrieval_queries = false;
};

// Of q, k, v and, where it is there, landmark_q, which must fit together.
LayerTensors check_layer_tensors(const kvstore::SafetensorsFile& file);

// The first row of [rows, width] that holds NaN or an infinity, or -1.
std::int64_t first_nonfinite_row(const std::vector<std::byte>& bytes, DType dtype, std::int64_t width);

// The row of the file that is row `index` of the runs, or -1.
std::int64_t row_of(std::span<const RowRange> runs, std::int64_t index);

// Fills the shard with these rows of the file, in order. Throws Error(kBadInput) naming tensor and row of a value that
// is NaN or infinite; `row_word` is what a row is called.
void read_layer_rows(const kvstore::SafetensorsFile& file, std::span<const RowRange> runs, std::string_view row_word,
                     bool has_retrieval_queries, LayerShard& shard);

}  // namespace ringmark::runtime
