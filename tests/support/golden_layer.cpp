#include "tests/support/golden_layer.h"

#include "kvstore/safetensors_file.h"
#include "runtime/layer_file.h"

namespace ringmark::test {
namespace {

template <class T>
std::vector<T> read(const kvstore::SafetensorsFile& file, const char* name, std::int64_t rows) {
  const kvstore::StoredTensor& tensor = file.tensor(name);
  std::vector<T> values(static_cast<std::size_t>(rows * tensor.row_bytes()) / sizeof(T));
  file.read_rows(tensor, {0, rows}, std::as_writable_bytes(std::span(values)));
  return values;
}

std::vector<double> read_floats(const kvstore::SafetensorsFile& file, const char* name, std::int64_t rows) {
  const auto values = read<float>(file, name, rows);
  return {values.begin(), values.end()};
}

}  // namespace

GoldenLayer load_golden(std::int64_t tokens) {
  const std::string folder = RINGMARK_TEST_DATA;
  const runtime::LayerFile description(folder + "/layer.safetensors", {});
  const kvstore::SafetensorsFile input(folder + "/layer.safetensors");
  const kvstore::SafetensorsFile results(folder + "/layer_golden.safetensors");
  GoldenLayer golden;
  golden.layer = {description.problem(),
                  description.policy(),
                  read<std::byte>(input, "q", tokens),
                  read<std::byte>(input, "landmark_q", tokens),
                  read<std::byte>(input, "k", tokens),
                  read<std::byte>(input, "v", tokens)};
  golden.layer.problem.tokens = tokens;
  golden.out = read_floats(results, "o", tokens);
  golden.lse = read_floats(results, "lse", tokens);
  golden.lse_window = read_floats(results, "lse_window", tokens);
  golden.chunks = read<std::int32_t>(results, "topk_chunks", tokens);
  golden.margin = read_floats(results, "topk_margin", tokens);
  const std::int64_t chunks = tokens / golden.layer.problem.chunk_size;
  golden.landmark_keys = read_floats(results, "landmark_k", chunks);
  golden.landmark_bias = read_floats(results, "landmark_bias", chunks);
  return golden;
}

}  // namespace ringmark::test
