#include "kvstore/safetensors_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace ringmark::kvstore {

SafetensorsHeader read_safetensors_header(const Descriptor& file, const std::string& path) {
  const std::int64_t file_bytes = regular_file_bytes(file, path);
  std::string head(static_cast<std::size_t>(std::min(file_bytes, kSafetensorsLengthBytes)), '\0');
  read_range(file, 0, std::as_writable_bytes(std::span(head)), path + ": length word");
  const std::int64_t length = safetensors_header_bytes(path, head, file_bytes);
  head.resize(static_cast<std::size_t>(kSafetensorsLengthBytes + length));
  read_range(file, kSafetensorsLengthBytes,
             std::as_writable_bytes(std::span(head)).subspan(static_cast<std::size_t>(kSafetensorsLengthBytes)),
             path + ": header");
  return parse_safetensors_header(path, head, file_bytes);
}

SafetensorsFile::SafetensorsFile(std::string path)
    : path_(std::move(path)), file_(open_for_reading(path_)), header_(read_safetensors_header(file_, path_)) {}

const StoredTensor& SafetensorsFile::tensor(std::string_view name) const {
  const StoredTensor* found = header_.find(name);
  if (found == nullptr) {
    fail_bad_input(fmt::format("{}: {} is not in the file, which has {} tensors", path_, quoted_tensor(name),
                               header_.tensors.size()));
  }
  return *found;
}

void SafetensorsFile::read_rows(const StoredTensor& tensor, RowRange rows, std::span<std::byte> out) const {
  require(!tensor.shape.empty() && 0 <= rows.begin && rows.begin <= rows.end && rows.end <= tensor.shape[0],
          "rows to read lie inside the tensor");
  require(std::cmp_equal(out.size(), rows.size() * tensor.row_bytes()), "destination has exactly the size of the rows");
  read_range(file_, header_.data_offset + tensor.begin + rows.begin * tensor.row_bytes(), out,
             fmt::format("{}: {}", path_, quoted_tensor(tensor.name)));
}

}  // namespace ringmark::kvstore
