#include "bench/gpu/ranks.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "comm/mpi_communicator.h"
#include "comm/mpi_session.h"
#include "comm/thread_ranks.h"
#include "core/error.h"

namespace ringmark::bench {

int run_on_ranks(std::string_view program, const std::function<bool(comm::Communicator&)>& body) {
  const auto attempt = [&](const auto& work, const auto& end_with) {
    try {
      return work() ? EXIT_SUCCESS : EXIT_FAILURE;
    } catch (const Error& error) {
      fmt::print(stderr, "{}: {}\n", program, error.what());
      return end_with(static_cast<int>(error.code()));
    }
  };
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
    return attempt([&] { return body(*comm::make_single_rank()); }, [](int code) { return code; });
  }
  const comm::MpiSession session;
  const auto on_all_ranks = [&] {
    comm::MpiCommunicator ranks;
    return body(ranks);
  };
  return attempt(on_all_ranks, [](int code) -> int { comm::MpiSession::abort(code); });
}

}  // namespace ringmark::bench
