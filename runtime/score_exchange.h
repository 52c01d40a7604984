// The one all-gather of a decode step: every rank scored its own landmarks for all rows of the step; afterwards each
// knows the lists and sums of all ranks and the window lse of every row, and so the whole selection.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "core/ids.h"
#include "kernels/score_chunks.h"

namespace ringmark::runtime {

struct StepScores {
  std::vector<kernels::CandidateLists> parts;  // by rank
  std::vector<float> lse_window;               // [rows, H]
  bool stop = false;                           // a rank was asked to stop
  std::int64_t bytes_received = 0;
};

// Collective. homes: by row, whose rank knows its window. lse_window: [rows, H], read for the rows of this rank.
StepScores exchange_scores(comm::Communicator& communicator, std::string_view stage,
                           const kernels::CandidateLists& scored, std::span<const RankId> homes,
                           std::span<const float> lse_window, bool stop);

}  // namespace ringmark::runtime
