// Decoding over kept, sharded K and V: new tokens of any of the sequences join the layer and attend as they would in
// one prefill of the whole. A step of many rows (a partial prefill) is the same call; it runs tile by tile.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "core/ids.h"
#include "kernels/select_chunks.h"
#include "kvstore/block_cache.h"
#include "runtime/block_reader.h"
#include "runtime/decode_plan.h"
#include "runtime/kept_layer.h"
#include "runtime/new_tokens.h"
#include "runtime/push_exchange.h"
#include "runtime/stage_clock.h"

namespace ringmark::runtime {

struct DecodeOptions {
  Exchange exchange = Exchange::kAuto;
  std::optional<ExchangeCosts> costs;                 // unset: measured
  std::int64_t cache_bytes = std::int64_t{64} << 20;  // blocks of other ranks, decoded blocks of this one
  std::int64_t tile_rows = 256;                       // rows done at once
  int threads = 1;
  Trace* trace = nullptr;  // where spans of the stages go; may be null
};

// Received by this rank.
struct DecodeTraffic {
  std::int64_t bytes_pulled = 0;    // blocks with their landmark parts
  std::int64_t bytes_pushed = 0;    // partials
  std::int64_t bytes_gathered = 0;  // score lists, sums, lse
  std::int64_t bytes_of_plans = 0;  // bits that say which blocks to push
  std::int64_t blocks_pulled = 0;   // each compared with its checksum
  std::int64_t blocks_pushed = 0;   // blocks of this rank's rows that their owners attended
  std::int64_t cache_hits = 0;      // blocks that were there already

  DecodeTraffic& operator+=(const DecodeTraffic& other);
};

struct DecodeStep {
  std::vector<TokenId> tokens;     // of all rows
  std::vector<std::int64_t> rows;  // those whose home is this rank, ascending
  std::vector<float> out;          // [rows of this rank, H, d]
  std::vector<float> lse;          // [rows of this rank, H]
  kernels::Selection selection;    // of all rows
  DecodeTraffic traffic;
  bool stop = false;  // some rank was asked to stop: all of them learn it in the same step

  // Joins the result of rows [first_row, ...) of the same step.
  void add(DecodeStep part, std::int64_t first_row);
};

class Decoder {
 public:
  // Collective. All arguments but the last outlive the decoder. Throws Error(kBadInput) when the cache cannot hold what
  // one row needs at once.
  Decoder(comm::Communicator& communicator, comm::BlockTransport& transport, KeptLayer& layer,
          const DecodeOptions& options);

  // Collective: `rows` are the same on every rank. stop: this rank was asked to stop. Throws Error(kBadInput) for rows
  // that do not fit into their sequences, before anything is done; Error(kPeer) naming rank, layer, step and peer when
  // a peer misses a deadline or a block that arrives is not what it must be.
  DecodeStep step(const NewTokens& rows, bool stop = false);

  std::int64_t steps_done() const { return steps_; }
  const ExchangeCosts& costs() const { return costs_; }
  // append, window, select (score is a part of it), attend
  const StageClock& clock() const { return clock_; }

  // Bytes that the cache needs for what one row may need at once; 0 where nothing goes through it.
  static std::int64_t least_cache_bytes(const KeptShape& shape, int ranks);

 private:
  struct Tile;
  struct Exchanged;

  std::string stage(std::string_view work) const;
  DecodeStep run_tile(const NewTokens& rows, bool stop);
  void attend_window(Tile& tile);
  void select(Tile& tile, bool stop);
  Exchanged plan_exchange(Tile& tile);
  void attend_chosen(Tile& tile);
  // Rows whose blocks are held together.
  std::vector<HeldRows> parts_of(const kernels::Selection& chosen) const;
  void attend(const Tile& tile, const kernels::Selection& chosen, const PartialRows& into);
  DecodeStep finish(Tile& tile);

  comm::Communicator& communicator_;
  KeptLayer& layer_;
  DecodeOptions options_;
  ExchangeCosts costs_;
  kvstore::BlockCache cache_;
  BlockReader reader_;
  PushPlanner planner_;
  StageClock clock_;
  std::int64_t steps_ = 0;
};

}  // namespace ringmark::runtime
