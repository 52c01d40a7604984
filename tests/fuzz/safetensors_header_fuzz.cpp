// The input is the first bytes of a file that ends with them or a little later.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvstore/safetensors_header.h"
#include "tests/fuzz/refusal.h"

using ringmark::fuzz::accepts;
using ringmark::fuzz::must_hold;

namespace {

// Tensors lie one behind the other and cover the data section.
void check_accepted(const ringmark::kvstore::SafetensorsHeader& header, std::int64_t file_bytes) {
  std::int64_t end = 0;
  for (const auto& tensor : header.tensors) {
    must_hold(tensor.begin == end && tensor.end >= tensor.begin, "tensors leave no hole and do not overlap");
    must_hold(ringmark::kvstore::safetensors_tensor_bytes(tensor.dtype, tensor.shape) == tensor.bytes(),
              "a tensor has the bytes of its shape");
    must_hold(header.find(tensor.name) == &tensor, "a name is given once");
    end = tensor.end;
  }
  must_hold(header.data_offset + end == file_bytes, "tensors cover the file");
}

void parse(std::string_view head, std::int64_t file_bytes) {
  accepts([&] { check_accepted(ringmark::kvstore::parse_safetensors_header("input", head, file_bytes), file_bytes); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view head(reinterpret_cast<const char*>(data), size);
  parse(head, static_cast<std::int64_t>(size));
  for (const std::int64_t data_bytes : {4, 64, 65536}) parse(head, static_cast<std::int64_t>(size) + data_bytes);
  return 0;
}
