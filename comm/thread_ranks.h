// Ranks as threads of one process: the same Communicator contract without MPI. Used by most distributed tests.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "comm/block_transport.h"
#include "comm/communicator.h"

namespace ringmark::comm {

// A communicator of one rank that needs no MPI.
std::unique_ptr<Communicator> make_single_rank();

// Runs `body` on `ranks` threads, each with its own communicator. An exception on one rank wakes the others out of
// their collectives; the first exception is rethrown here after all threads have ended.
void run_thread_ranks(int ranks, const std::function<void(Communicator&)>& body,
                      std::chrono::duration<double> timeout = std::chrono::seconds(60));

}  // namespace ringmark::comm
