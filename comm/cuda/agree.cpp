#include "comm/cuda/agree.h"

#include <fmt/format.h>

#include "core/error.h"

namespace ringmark::comm::cuda {

void agree(Communicator& communicator, std::string_view stage, std::string_view trouble) {
  const std::vector<std::string> troubles = communicator.gather_texts(stage, trouble);
  for (std::size_t r = 0; r < troubles.size(); ++r) {
    if (!troubles[r].empty()) fail_environment(fmt::format("rank {}: {}", r, troubles[r]));
  }
}

}  // namespace ringmark::comm::cuda
