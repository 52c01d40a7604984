#include "comm/ucx_context.h"

#include <fmt/format.h>
#include <signal.h>
#include <ucs/debug/debug.h>

#include <cstdlib>

#include "core/error.h"

namespace ringmark::comm {
namespace {

// UCX takes these signals over when it is loaded, before main: a process that ignored SIGHUP (nohup) or should end by
// it would do neither. Given back after the libraries' own initialisation.
[[maybe_unused]] const bool signals_given_back = [] {
  for (const int signal : {SIGHUP, SIGSEGV, SIGBUS, SIGILL, SIGFPE}) ucs_debug_disable_signal(signal);
  return true;
}();

struct ReleaseConfig {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};
using Config = std::unique_ptr<ucp_config_t, ReleaseConfig>;

void set_default(const Config& config, int rank, const char* name, const char* value) {
  if (std::getenv(fmt::format("UCX_{}", name).c_str()) != nullptr) return;
  check_ucx(ucp_config_modify(config.get(), name, value), rank, name);
}

}  // namespace

void check_ucx(ucs_status_t status, int rank, const char* operation) {
  if (status == UCS_OK) return;
  fail_environment(fmt::format("rank {}: UCX: {}: {}", rank, operation, ucs_status_string(status)));
}

UcxContext open_ucx(int rank, bool one_host) {
  ucp_config_t* read = nullptr;
  check_ucx(ucp_config_read(nullptr, nullptr, &read), rank, "ucp_config_read");
  const Config config(read);
  set_default(config, rank, "TLS", "^posix");
  // System V segments go with their last user, however it ends. Files of /dev/shm are the library's next choice: it
  // writes to every page of them until the memory of the host is full.
  set_default(config, rank, "ALLOC_PRIO", "md:sysv,mmap");
  if (one_host) set_default(config, rank, "NET_DEVICES", "lo");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  check_ucx(ucp_init(&params, config.get(), &context), rank, "ucp_init");
  return UcxContext(context);
}

UcxWorker open_worker(ucp_context_h context, int rank) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  check_ucx(ucp_worker_create(context, &params, &worker), rank, "ucp_worker_create");
  return UcxWorker(worker);
}

std::vector<std::byte> address_of(ucp_worker_h worker, int rank) {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  check_ucx(ucp_worker_get_address(worker, &address, &length), rank, "ucp_worker_get_address");
  const auto* bytes = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copy(bytes, bytes + length);
  ucp_worker_release_address(worker, address);
  return copy;
}

}  // namespace ringmark::comm
