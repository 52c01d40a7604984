#include "kvstore/joint_step.h"

#include <fmt/format.h>

#include <chrono>
#include <new>
#include <optional>
#include <string>
#include <vector>

namespace ringmark::kvstore {

void run_joint_step(comm::Communicator& communicator, std::string_view stage, const std::function<void()>& step) {
  std::optional<Error> mine;
  const auto begin = std::chrono::steady_clock::now();
  try {
    step();
  } catch (const Error& error) {
    mine = error;
  } catch (const std::bad_alloc&) {
    mine.emplace(ExitCode::kEnvironment, "out of memory");
  }
  const std::string text = mine ? mine->what() : "";
  std::vector<std::string> texts;
  std::vector<std::int64_t> codes;
  try {
    // Files take their time: peers may honestly need as much longer as this rank took.
    communicator.barrier(stage, std::chrono::steady_clock::now() - begin);
    codes = communicator.gather_sizes(stage, mine ? static_cast<std::int64_t>(mine->code()) : 0);
    texts = communicator.gather_texts(stage, text);
  } catch (const Error&) {
    if (mine) throw *mine;  // the first cause
    throw;
  }
  for (std::size_t rank = 0; rank < codes.size(); ++rank) {
    if (codes[rank] == 0) continue;
    throw JointError(static_cast<ExitCode>(codes[rank]),
                     codes.size() > 1 ? fmt::format("rank {}: {}", rank, texts[rank]) : texts[rank]);
  }
}

}  // namespace ringmark::kvstore
