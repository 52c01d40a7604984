#include "comm/cuda/agree.h"

#include <fmt/format.h>

#include "core/error.h"

namespace ringmark::comm::cuda {

std::vector<std::string> gather_texts(Communicator& communicator, std::string_view stage, std::string_view mine) {
  const auto sizes = communicator.gather_sizes(stage, static_cast<std::int64_t>(mine.size()));
  std::vector<std::string> texts;
  for (const std::int64_t size : sizes) texts.emplace_back(static_cast<std::size_t>(size), '\0');
  std::vector<Bytes> all;
  for (std::string& text : texts) all.push_back(std::as_writable_bytes(std::span(text)));
  communicator.all_gather(stage, std::as_bytes(std::span(mine)), all);
  return texts;
}

void agree(Communicator& communicator, std::string_view stage, std::string_view trouble) {
  const std::vector<std::string> troubles = gather_texts(communicator, stage, trouble);
  for (std::size_t r = 0; r < troubles.size(); ++r) {
    if (!troubles[r].empty()) fail_environment(fmt::format("rank {}: {}", r, troubles[r]));
  }
}

}  // namespace ringmark::comm::cuda
