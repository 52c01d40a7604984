#include "runtime/block_waves.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "comm/current_step.h"
#include "runtime/wave_fetcher.h"

namespace ringmark::runtime {

void BlockWaves::run(std::string_view stage, const FetchPlan& plan, std::int64_t& done, const WaveWork& work) const {
  std::vector<std::byte> arena(static_cast<std::size_t>(plan.slots * table.shape().bytes()));
  WaveFetcher fetcher(transport, region, plan, arena, table);
  const auto start = [&](std::size_t wave) {
    fetcher.start(wave);
    work.start_more(plan.waves[wave].rows);
  };
  const std::int64_t first = done;
  progress.begin(stage, plan.waves.empty() ? 0 : plan.waves.back().rows.end - first);
  const std::string unit = std::string(stage) + " wave";
  for (std::size_t wave = 0; wave < plan.waves.size(); ++wave) {
    const comm::EnterStep step(unit, static_cast<std::int64_t>(wave));
    {
      const auto span = clock.time("fetch");
      if (wave == 0) start(0);
      fetcher.wait();
      work.wait_more();
      if (wave + 1 < plan.waves.size()) start(wave + 1);
    }
    const auto span = clock.time(stage);
    const std::int64_t end = plan.waves[wave].rows.end;
    while (done < end && !stop()) {
      const RowRange tile{done, std::min(end, done + tile_rows)};
      work.attend(tile);
      done = tile.end;
      progress.advance(done - first);
    }
    if (done < end) break;
  }
  progress.end();
}

}  // namespace ringmark::runtime
