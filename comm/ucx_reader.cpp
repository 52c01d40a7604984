#include "comm/ucx_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "core/error.h"

namespace ringmark::comm {
namespace {

// The reads that were under way report the failure themselves.
void ignore_endpoint_error(void*, ucp_ep_h, ucs_status_t) {}

void finish_read(void* request, ucs_status_t status, void* user_data) {
  auto& owed = *static_cast<UcxReader::Owed*>(user_data);
  --owed.reads;
  if (status != UCS_OK) owed.failure = status;
  ucp_request_free(request);
}

}  // namespace

UcxReader::UcxReader(ucp_context_h context, int rank, int ranks)
    : rank_(rank), worker_(open_worker(context, rank)), endpoints_(static_cast<std::size_t>(ranks), nullptr) {}

UcxReader::~UcxReader() {
  if (abandoned_ || std::uncaught_exceptions() > 0) (void)worker_.release();
}

void UcxReader::connect(int peer, ConstBytes address, bool same_host) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = same_host ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  if (!same_host) {
    params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.err_handler = {.cb = ignore_endpoint_error, .arg = nullptr};
  }
  check_ucx(ucp_ep_create(worker_.get(), &params, &endpoints_[static_cast<std::size_t>(peer)]), rank_, "ucp_ep_create");
}

void UcxReader::start(std::span<const Piece> pieces, std::vector<Owed>& owed) {
  const std::lock_guard lock(mutex_);
  for (const Piece& piece : pieces) {
    Owed& of_peer = owed[static_cast<std::size_t>(piece.peer)];
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.cb.send = finish_read;
    params.user_data = &of_peer;
    void* const request = ucp_get_nbx(endpoint(piece.peer), piece.destination.data(), piece.destination.size(),
                                      piece.address, piece.key, &params);
    if (UCS_PTR_IS_ERR(request)) of_peer.failure = UCS_PTR_STATUS(request);
    if (UCS_PTR_IS_PTR(request)) ++of_peer.reads;
  }
}

bool UcxReader::progress(const std::vector<Owed>& owed) {
  const std::lock_guard lock(mutex_);
  const bool moved = ucp_worker_progress(worker_.get()) != 0;
  const auto failed = std::ranges::find_if(owed, [](const Owed& of_peer) { return of_peer.failure != UCS_OK; });
  if (failed != owed.end()) {
    fail_peer(fmt::format("rank {}: stage 'block reads': read from rank {} failed: {}", rank_, failed - owed.begin(),
                          ucs_status_string(failed->failure)));
  }
  return moved;
}

std::vector<int> UcxReader::late_peers(const std::vector<Owed>& owed) {
  const std::lock_guard lock(mutex_);
  std::vector<int> late;
  for (std::size_t peer = 0; peer < owed.size(); ++peer) {
    if (owed[peer].reads > 0) late.push_back(static_cast<int>(peer));
  }
  return late;
}

void UcxReader::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
}

bool UcxReader::abandoned() const {
  const std::lock_guard lock(mutex_);
  return abandoned_;
}

}  // namespace ringmark::comm
