#include "runtime/fetch_strategy.h"

#include <fmt/format.h>

#include "core/error.h"

namespace ringmark::runtime {

FetchDecision choose_fetch(Fetch asked, std::int64_t chosen_bytes, std::int64_t remote_bytes, std::int64_t budget,
                           const LinkRates& rates) {
  FetchDecision decision;
  decision.chosen_bytes = chosen_bytes;
  decision.remote_bytes = remote_bytes;
  decision.blocks_seconds = static_cast<double>(chosen_bytes) / rates.scattered;
  decision.stream_seconds = static_cast<double>(remote_bytes) / rates.streamed;
  const bool fits = remote_bytes <= budget;
  if (asked == Fetch::kStream && !fits) {
    fail_bad_input(fmt::format("fetch = stream needs room for {} bytes of remote blocks, fetch-mib allows {}",
                               remote_bytes, budget));
  }
  const bool pays = decision.stream_seconds < decision.blocks_seconds;
  decision.fetch = asked != Fetch::kAuto ? asked : fits && pays ? Fetch::kStream : Fetch::kBlocks;
  const double share =
      remote_bytes > 0 ? 100.0 * static_cast<double>(chosen_bytes) / static_cast<double>(remote_bytes) : 0.0;
  decision.why = remote_bytes == 0
                     ? "no remote blocks"
                     : fmt::format(
                           "{}: {:.1f}% of the remote blocks were chosen, {:.3f} ms by blocks, {:.3f} ms "
                           "streamed{}",
                           name_of(decision.fetch), share, decision.blocks_seconds * 1e3, decision.stream_seconds * 1e3,
                           asked != Fetch::kAuto ? " (asked for)"
                           : pays && !fits       ? " (no room to stream)"
                                                 : "");
  return decision;
}

}  // namespace ringmark::runtime
