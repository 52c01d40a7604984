// UCX as far as the ucx transport needs it: the library's context, its workers, and status codes as errors.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace ringmark::comm {

// Throws Error(kEnvironment) naming rank and operation unless `status` is a success.
void check_ucx(ucs_status_t status, int rank, const char* operation);

struct DestroyContext {
  void operator()(ucp_context_h context) const { ucp_cleanup(context); }
};
struct DestroyWorker {
  void operator()(ucp_worker_h worker) const { ucp_worker_destroy(worker); }
};
using UcxContext = std::unique_ptr<ucp_context, DestroyContext>;
using UcxWorker = std::unique_ptr<ucp_worker, DestroyWorker>;

// Memory of peers is read, and a thread can sleep until its worker has something to do. Settings of the user
// (UCX_* variables) come first. Without them nothing is kept in /dev/shm, which containers make small, and when all
// ranks share one host, no socket listens beyond the loopback interface.
UcxContext open_ucx(int rank, bool one_host);

// Used by one thread at a time; the caller sees to that.
UcxWorker open_worker(ucp_context_h context, int rank);
std::vector<std::byte> address_of(ucp_worker_h worker, int rank);

}  // namespace ringmark::comm
