// What this rank is waiting for at this moment, for whoever asks from another thread: a job that is told to end, or
// that stands still, can say where it stood.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/current_step.h"

namespace ringmark::comm {

// Shorter waits are part of every exchange and not worth noting.
inline constexpr std::chrono::milliseconds kNotedWait{20};
// How often a wait looks again at whom it waits for.
inline constexpr std::chrono::milliseconds kRenewedWait{250};

struct WaitNote {
  std::uint64_t id = 0;     // of this wait in the process, from 1
  std::string stage;        // of the communicator or transport: "block reads"
  Step step;                // of the engine
  std::vector<int> peers;   // ascending; empty: MPI waits, and does not tell for whom
  std::int64_t bytes = -1;  // that have not come; -1: not known
  double seconds = 0;       // so far
};

// Says so as long as it lives. `stage` outlives it.
class CurrentWait {
 public:
  // No peers: MPI waits, and does not tell for whom.
  CurrentWait(std::string_view stage, std::vector<int> peers, std::int64_t bytes = -1);
  ~CurrentWait();
  CurrentWait(const CurrentWait&) = delete;
  CurrentWait& operator=(const CurrentWait&) = delete;

  // Some have delivered since.
  void renew(std::vector<int> peers, std::int64_t bytes);

  // The wait that began last; nothing when nobody waits.
  static std::optional<WaitNote> latest();
  // The wait that ended last: when an error tells of a deadline, the one that missed it.
  static std::optional<WaitNote> ended_last();
  // All noted waits of this process, those under way included.
  static double total_seconds();
  // "stage 'landmarks': waiting 5.0 s for ranks 0, 3", of the wait that began last; empty when nobody waits.
  static std::string words();

 private:
  WaitNote note() const;

  WaitNote note_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

// A wait that is noted once it has become long, and renewed as it goes on. In a loop that polls:
//     if (noted.due()) noted.note(stage, late_peers(), late_bytes());
class NotedWait {
 public:
  bool due() const { return std::chrono::steady_clock::now() >= next_; }
  void note(std::string_view stage, std::vector<int> peers, std::int64_t bytes);

 private:
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + kNotedWait;
  std::optional<CurrentWait> current_;
};

}  // namespace ringmark::comm
