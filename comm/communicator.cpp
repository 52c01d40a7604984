#include "comm/communicator.h"

namespace ringmark::comm {

std::vector<std::int64_t> Communicator::gather_sizes(std::string_view stage, std::int64_t mine) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(size()));
  std::vector<Bytes> all;
  for (std::int64_t& value : sizes) all.push_back(std::as_writable_bytes(std::span(&value, 1)));
  all_gather(stage, std::as_bytes(std::span(&mine, 1)), all);
  return sizes;
}

template <class Buffer>
std::vector<Buffer> Communicator::gather_buffers(std::string_view stage, ConstBytes mine) {
  std::vector<Buffer> buffers;
  for (const std::int64_t size : gather_sizes(stage, static_cast<std::int64_t>(mine.size()))) {
    buffers.emplace_back(static_cast<std::size_t>(size), typename Buffer::value_type{});
  }
  std::vector<Bytes> all;
  for (Buffer& buffer : buffers) all.push_back(std::as_writable_bytes(std::span(buffer)));
  all_gather(stage, mine, all);
  return buffers;
}

std::vector<std::vector<std::byte>> Communicator::gather_bytes(std::string_view stage, ConstBytes mine) {
  return gather_buffers<std::vector<std::byte>>(stage, mine);
}

std::vector<std::string> Communicator::gather_texts(std::string_view stage, std::string_view mine) {
  return gather_buffers<std::string>(stage, std::as_bytes(std::span(mine)));
}

}  // namespace ringmark::comm
