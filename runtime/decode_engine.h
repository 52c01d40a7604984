// A layer that is kept and what decodes over it, in host memory or on a GPU: what a job sees of either.
#pragma once

#include <optional>

#include "kvstore/snapshot.h"
#include "runtime/decode.h"
#include "runtime/kept_sequences.h"
#include "runtime/stage_clock.h"

namespace ringmark::runtime {

class DecodeEngine {
 public:
  virtual ~DecodeEngine() = default;

  virtual const KeptSequences& sequences() const = 0;
  // Collective: as KeptLayer::load.
  virtual void load(const kvstore::Snapshot& snapshot) = 0;
  // Collective: as Decoder::step.
  virtual DecodeStep step(const NewTokens& rows, bool stop) = 0;
  // What this rank has to write; valid until the next step.
  virtual kvstore::SnapshotContents contents() = 0;
  virtual const StageClock& clock() const = 0;
};

// In host memory, on the CPU.
class HostDecodeEngine final : public DecodeEngine {
 public:
  // Collective: makes room for the layer. The transport has nothing exposed yet. The first two outlive the engine.
  HostDecodeEngine(comm::Communicator& communicator, comm::BlockTransport& transport, const KeptShape& shape,
                   const DecodeOptions& options)
      : communicator_(communicator),
        transport_(transport),
        options_(options),
        layer_(communicator, transport, shape, options.threads) {}
  // Collective: measures what has to be known of the peers. Before the first step.
  void start() { decoder_.emplace(communicator_, transport_, layer_, options_); }

  const KeptSequences& sequences() const override { return layer_.sequences(); }
  void load(const kvstore::Snapshot& snapshot) override { layer_.load(snapshot); }
  DecodeStep step(const NewTokens& rows, bool stop) override { return decoder_->step(rows, stop); }
  kvstore::SnapshotContents contents() override { return layer_.contents(); }
  const StageClock& clock() const override { return decoder_->clock(); }
  const ExchangeCosts& costs() const { return decoder_->costs(); }

 private:
  comm::Communicator& communicator_;
  comm::BlockTransport& transport_;
  DecodeOptions options_;
  KeptLayer layer_;
  std::optional<Decoder> decoder_;
};

}  // namespace ringmark::runtime
