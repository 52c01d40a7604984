#include "comm/ucx_server.h"

#include <sys/poll.h>

namespace ringmark::comm {
namespace {

// An end to every sleep, should the library ever lose an event.
constexpr int kLongestSleep = 100;  // ms

}  // namespace

UcxServer::UcxServer(ucp_context_h context, int rank)
    : worker_(open_worker(context, rank)), address_(address_of(worker_.get(), rank)) {
  check_ucx(ucp_worker_get_efd(worker_.get(), &events_), rank, "ucp_worker_get_efd");
  thread_ = std::thread([this] { run(); });
}

UcxServer::~UcxServer() {
  stop_ = true;
  ucp_worker_signal(worker_.get());
  thread_.join();
}

void UcxServer::run() noexcept {
  while (!stop_) {
    while (ucp_worker_progress(worker_.get()) != 0) {
    }
    // Busy: something arrived since the last progress call.
    if (ucp_worker_arm(worker_.get()) == UCS_ERR_BUSY) continue;
    pollfd events{.fd = events_, .events = POLLIN, .revents = 0};
    poll(&events, 1, kLongestSleep);
  }
}

}  // namespace ringmark::comm
