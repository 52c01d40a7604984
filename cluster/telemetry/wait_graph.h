// Who waits for whom, and for whom it all comes down to.
//
// An edge goes from each rank that waits to those it waits for. Whoever is waited for and does not wait itself is a
// root: it works, has stopped, or is dead. The answer is the root that most ranks reach over edges. Where there is
// none, ranks wait for each other in a circle: the answer is the circle.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/current_step.h"

namespace ringmark::cluster {

struct RankWait {
  std::vector<int> peers;  // empty: MPI waits, and does not tell for whom
  std::string exchange;    // what the rank waits in
  comm::Step step;
  double seconds = 0;
};

struct WaitVerdict {
  std::vector<int> roots;    // ascending; several where equally many wait for them, or a circle
  std::vector<int> waiting;  // ranks that reach one of them
  bool is_circle = false;
  std::vector<int> not_told;  // that wait inside MPI, for nobody knows whom
};

// `waits` by rank, of the ranks that wait.
WaitVerdict judge_waits(const std::map<int, RankWait>& waits);

}  // namespace ringmark::cluster
