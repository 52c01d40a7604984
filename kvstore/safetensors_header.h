// The header of a safetensors file, read strictly: what the reference reader rejects is rejected here, and before
// anything is allocated for it. Rules: docs/formats.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringmark::kvstore {

inline constexpr std::int64_t kSafetensorsLengthBytes = 8;  // the length word before the header
inline constexpr std::int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxSafetensorsTensors = 100'000;
inline constexpr std::size_t kMaxSafetensorsRank = 8;
inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";  // a key of the header that is no tensor

struct StoredTensor {
  std::string name;
  std::string dtype;  // as written in the file: "BF16", "F32", "I64", ...
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // bytes from the start of the data section
  std::int64_t end = 0;

  std::int64_t bytes() const { return end - begin; }
  // Bytes of one index of the first dimension.
  std::int64_t row_bytes() const { return shape.empty() || shape[0] == 0 ? 0 : bytes() / shape[0]; }
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<StoredTensor> tensors;  // by ascending offset
  std::int64_t data_offset = 0;       // file offset of the data section

  const StoredTensor* find(std::string_view name) const;
};

// Bytes of the header behind the length word, checked against the cap and the size of the file, so that a reader can
// allocate them. `head` is the file's first bytes. Throws Error(kBadInput).
std::int64_t safetensors_header_bytes(std::string_view path, std::string_view head, std::int64_t file_bytes);

// `head` is the file's first bytes (the length word and as much of the header as there is), `file_bytes` its whole
// size. Throws Error(kBadInput) with `path`, the tensor and the broken rule in one line.
SafetensorsHeader parse_safetensors_header(std::string_view path, std::string_view head, std::int64_t file_bytes);

// Bytes of one element; 0 for a dtype name that the format does not know.
std::int64_t safetensors_element_bytes(std::string_view dtype);

// Bytes of a whole tensor; nothing when a dimension is negative, the dtype is unknown or the product, taken
// from the left, passes 2^63 - 1.
std::optional<std::int64_t> safetensors_tensor_bytes(std::string_view dtype, std::span<const std::int64_t> shape);

// "tensor 'name'" for error lines: whatever a file calls its tensors, the line stays one short printable line.
std::string quoted_tensor(std::string_view name);

}  // namespace ringmark::kvstore
