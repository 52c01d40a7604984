#include "comm/communicator.h"

namespace ringmark::comm {

std::vector<std::int64_t> Communicator::gather_sizes(std::string_view stage, std::int64_t mine) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(size()));
  std::vector<Bytes> all;
  for (std::int64_t& value : sizes) all.push_back(std::as_writable_bytes(std::span(&value, 1)));
  all_gather(stage, std::as_bytes(std::span(&mine, 1)), all);
  return sizes;
}

}  // namespace ringmark::comm
