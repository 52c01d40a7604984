#include "runtime/traced_transport.h"

#include <map>
#include <utility>
#include <vector>

namespace ringmark::runtime {
namespace {

class TracedReads final : public comm::PendingReads {
 public:
  TracedReads(std::unique_ptr<comm::PendingReads> inner, std::vector<TraceRead> reads, Trace& trace)
      : inner_(std::move(inner)), reads_(std::move(reads)), trace_(trace) {}

  // What was never waited for has not arrived.
  void wait() override {
    inner_->wait();
    const double now = Trace::now_us();
    for (TraceRead& read : reads_) {
      read.arrived_us = now;
      trace_.add_read(read);
    }
    reads_.clear();
  }

 private:
  std::unique_ptr<comm::PendingReads> inner_;
  std::vector<TraceRead> reads_;
  Trace& trace_;
};

}  // namespace

std::unique_ptr<comm::PendingReads> TracedTransport::get(std::span<const comm::RemoteRead> reads) {
  std::map<int, std::int64_t> bytes_of;  // by owner
  for (const comm::RemoteRead& read : reads) {
    if (read.peer != rank_) bytes_of[read.peer] += static_cast<std::int64_t>(read.destination.size());
  }
  const double now = Trace::now_us();
  std::vector<TraceRead> traced;
  traced.reserve(bytes_of.size());
  for (const auto& [owner, bytes] : bytes_of) traced.push_back({owner, bytes, now, now});
  return std::make_unique<TracedReads>(inner_->get(reads), std::move(traced), trace_);
}

}  // namespace ringmark::runtime
