// A transport that writes down whom this rank read blocks from and when, and leaves the reading to another.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "comm/block_transport.h"
#include "runtime/trace.h"

namespace ringmark::runtime {

class TracedTransport final : public comm::BlockTransport {
 public:
  // `rank` is this one, whose own blocks are not read from anybody. `trace` outlives the transport.
  TracedTransport(std::unique_ptr<comm::BlockTransport> inner, int rank, Trace& trace)
      : inner_(std::move(inner)), rank_(rank), trace_(trace) {}

  std::string_view name() const override { return inner_->name(); }
  comm::Bytes expose(std::int64_t bytes) override { return inner_->expose(bytes); }
  void publish() override { inner_->publish(); }
  std::unique_ptr<comm::PendingReads> get(std::span<const comm::RemoteRead> reads) override;
  void retire() override { inner_->retire(); }

 private:
  std::unique_ptr<comm::BlockTransport> inner_;
  int rank_;
  Trace& trace_;
};

}  // namespace ringmark::runtime
