#include "kvstore/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "kvstore/safetensors_json.h"

namespace ringmark::kvstore {
namespace {

struct ElementSize {
  std::string_view dtype;
  std::int64_t bytes;
};

constexpr std::array kElementSizes = {
    ElementSize{"BOOL", 1},    ElementSize{"U8", 1},  ElementSize{"I8", 1},  ElementSize{"F8_E4M3", 1},
    ElementSize{"F8_E5M2", 1}, ElementSize{"U16", 2}, ElementSize{"I16", 2}, ElementSize{"F16", 2},
    ElementSize{"BF16", 2},    ElementSize{"U32", 4}, ElementSize{"I32", 4}, ElementSize{"F32", 4},
    ElementSize{"U64", 8},     ElementSize{"I64", 8}, ElementSize{"F64", 8},
};

// The tensors, sorted, must cover the data section exactly: a hole can hide data, an overlap multiplies it, a section
// that is shorter or longer than the tensors is a file that was cut or added to.
void check_coverage(std::string_view path, const std::vector<StoredTensor>& tensors, std::int64_t data_bytes) {
  std::int64_t covered = 0;
  for (const StoredTensor& tensor : tensors) {
    const auto fail = [&](const std::string& what) {
      fail_bad_input(fmt::format("{}: {}: data_offsets [{}, {}] {}", path, quoted_tensor(tensor.name), tensor.begin,
                                 tensor.end, what));
    };
    if (tensor.end > data_bytes) {
      fail(fmt::format("end past the data section of {} bytes: the file is cut or its header wrong", data_bytes));
    }
    if (tensor.begin < covered) fail(fmt::format("overlap the tensor before, which ends at {}", covered));
    if (tensor.begin > covered) fail(fmt::format("leave a hole: the tensors before end at {}", covered));
    covered = tensor.end;
  }
  if (covered != data_bytes) {
    fail_bad_input(fmt::format("{}: data section has {} bytes, the tensors cover {}", path, data_bytes, covered));
  }
}

}  // namespace

const StoredTensor* SafetensorsHeader::find(std::string_view name) const {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

std::int64_t safetensors_element_bytes(std::string_view dtype) {
  for (const ElementSize& element : kElementSizes) {
    if (element.dtype == dtype) return element.bytes;
  }
  return 0;
}

std::optional<std::int64_t> safetensors_tensor_bytes(std::string_view dtype, std::span<const std::int64_t> shape) {
  std::int64_t bytes = safetensors_element_bytes(dtype);
  if (bytes == 0) return std::nullopt;
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent < 0; })) return std::nullopt;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::int64_t safetensors_header_bytes(std::string_view path, std::string_view head, std::int64_t file_bytes) {
  if (file_bytes < kSafetensorsLengthBytes || std::cmp_less(head.size(), kSafetensorsLengthBytes)) {
    fail_bad_input(fmt::format("{}: file has {} bytes, a safetensors file has at least {}", path, file_bytes,
                               kSafetensorsLengthBytes));
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kSafetensorsLengthBytes); ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(head[i])} << (8 * i);
  }
  if (std::cmp_greater(length, kMaxSafetensorsHeaderBytes)) {
    fail_bad_input(fmt::format("{}: header length {} is above the limit of {} bytes (is this a safetensors file?)",
                               path, length, kMaxSafetensorsHeaderBytes));
  }
  if (std::cmp_greater(length, file_bytes - kSafetensorsLengthBytes)) {
    fail_bad_input(fmt::format("{}: header length {} is more than the file's {} bytes behind the length word", path,
                               length, file_bytes - kSafetensorsLengthBytes));
  }
  return static_cast<std::int64_t>(length);
}

SafetensorsHeader parse_safetensors_header(std::string_view path, std::string_view head, std::int64_t file_bytes) {
  const std::int64_t length = safetensors_header_bytes(path, head, file_bytes);
  const std::int64_t data_offset = kSafetensorsLengthBytes + length;
  if (std::cmp_less(head.size(), data_offset)) {
    fail_bad_input(fmt::format("{}: header is cut: {} of {} bytes", path, head.size(), data_offset));
  }
  SafetensorsJson json = parse_safetensors_json(
      path, head.substr(static_cast<std::size_t>(kSafetensorsLengthBytes), static_cast<std::size_t>(length)));
  std::sort(json.tensors.begin(), json.tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_coverage(path, json.tensors, file_bytes - data_offset);
  return {std::move(json.metadata), std::move(json.tensors), data_offset};
}

}  // namespace ringmark::kvstore
