// What this rank is waiting for at this moment, for whoever asks from another thread: a job that is told to end can say
// where it stood.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace ringmark::comm {

// Shorter waits are part of every exchange and not worth noting.
inline constexpr std::chrono::milliseconds kNotedWait{20};

// Says so as long as it lives. `stage` outlives it. No peers: MPI waits, and does not tell for whom.
class CurrentWait {
 public:
  CurrentWait(std::string_view stage, std::vector<int> peers);
  ~CurrentWait();
  CurrentWait(const CurrentWait&) = delete;
  CurrentWait& operator=(const CurrentWait&) = delete;

  // "stage 'landmarks': waiting 5.0 s for ranks 0, 3", of the wait that began last; empty when nobody waits.
  static std::string words();

 private:
  std::string_view stage_;
  std::vector<int> peers_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

}  // namespace ringmark::comm
