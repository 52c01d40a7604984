// The loop of a stage that attends: the blocks that its rows need arrive in waves, the next wave while the current one
// is attended.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "comm/block_transport.h"
#include "core/ids.h"
#include "kernels/block_table.h"
#include "runtime/fetch_plan.h"
#include "runtime/progress_sink.h"
#include "runtime/stage_clock.h"

namespace ringmark::runtime {

// What a stage does with the rows of a wave.
struct WaveWork {
  std::function<void(RowRange rows)> attend;  // tile by tile, ascending
  // What else has to come with the blocks of a wave: its reads start and are complete when those of the blocks are.
  std::function<void(RowRange rows)> start_more = [](RowRange) {};
  std::function<void()> wait_more = [] {};
};

struct BlockWaves {
  comm::BlockTransport& transport;
  int region;  // the transport's number of the block arenas
  kernels::BlockTable& table;
  StageClock& clock;  // time under `stage`, and under "fetch" what waiting no attention hides
  ProgressSink& progress;
  std::int64_t tile_rows;  // rows between two looks at `stop`, at most
  std::function<bool()> const& stop;

  // `done` is how far this rank is with its rows; it ends before those of the plan when this rank is told to stop.
  // Throws Error(kPeer) when a peer misses the deadline.
  void run(std::string_view stage, const FetchPlan& plan, std::int64_t& done, const WaveWork& work) const;
};

}  // namespace ringmark::runtime
