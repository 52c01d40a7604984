// What a rank does, in order, as the replay runs it: computing, meeting all ranks, and waves of reads that run while
// the wave before is computed with. Built from the planner objects of the runtime (sparse_schedule.h,
// dense_schedule.h).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace ringmark::cluster {

enum class Stage : std::uint8_t {
  kStore,
  kLandmarks,
  kWindow,
  kGather,  // waiting for landmark records
  kPack,
  kScore,
  kPlan,
  kAttend,
  kFetch,  // waiting for blocks
  kMeet,   // waiting for slower ranks, and what meeting them takes
  kRest,
};
inline constexpr std::size_t kStages = 11;
inline constexpr std::array<std::string_view, kStages> kStageNames = {
    "store", "landmarks", "window", "gather", "pack", "score", "plan", "attend", "fetch", "meet", "rest"};
constexpr std::string_view name_of(Stage stage) { return kStageNames[static_cast<std::size_t>(stage)]; }

// From one owner; what lies side by side is one read.
struct OwnerReads {
  int owner = 0;
  std::int64_t bytes = 0;
  std::int64_t reads = 0;
};

struct SimulatedWave {
  std::vector<OwnerReads> reads;  // complete before the wave is computed with
  double seconds = 0.0;
};

struct Step {
  enum Kind : std::uint8_t { kCompute, kMeet, kWaves };
  Kind kind = kCompute;
  Stage stage = Stage::kRest;             // of computing
  Stage waiting = Stage::kFetch;          // of waves: of what no computing hides
  double seconds = 0.0;                   // of kCompute
  std::vector<SimulatedWave> waves = {};  // of kWaves
  bool streamed = false;                  // whole shards, at the rate of streams
  // All ranks take part in every round of waves, as those of a collective transport do, and have equally many.
  bool together = false;
};

struct RankSchedule {
  std::vector<Step> steps;
  std::int64_t received_bytes() const;
};

inline Step compute_step(Stage stage, double seconds) { return {Step::kCompute, stage, Stage::kFetch, seconds}; }
inline Step meet_step() { return {Step::kMeet, Stage::kMeet}; }

// Gives every rank as many rounds in its steps that all take part in as the rank with most: empty ones at the end.
void even_rounds(std::vector<RankSchedule>& schedules);

}  // namespace ringmark::cluster
