#include "runtime/agreement.h"

#include <new>
#include <optional>
#include <vector>

namespace ringmark::runtime {

void agree(comm::Communicator& communicator, std::string_view stage, const std::function<void()>& step) {
  std::optional<AgreedError> mine;
  try {
    step();
  } catch (const Error& error) {
    mine.emplace(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    mine.emplace(ExitCode::kEnvironment, "out of memory");
  }
  std::vector<std::int64_t> codes;
  try {
    codes = communicator.gather_sizes(stage, mine ? static_cast<std::int64_t>(mine->code()) : 0);
  } catch (const Error&) {
    if (mine) throw Error(mine->code(), mine->what());  // the first cause; peers may be waiting
    throw;
  }
  for (std::size_t rank = 0; rank < codes.size(); ++rank) {
    if (codes[rank] == 0) continue;
    if (static_cast<int>(rank) == communicator.rank()) throw *mine;
    throw AgreedError(static_cast<ExitCode>(codes[rank]), "");
  }
}

}  // namespace ringmark::runtime
