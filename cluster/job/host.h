// What this host lets the process have.
#pragma once

#include <cstdint>

namespace ringmark::cluster {

// Bytes that can still be had: MemAvailable, or what the control group leaves when that is less.
std::int64_t available_memory();

// Largest resident size of this process so far.
std::int64_t peak_memory();

// Threads for one of `host_ranks` ranks: the processors it is bound to; when it is not bound, its share of all. At
// least 1.
int default_threads(int host_ranks);

}  // namespace ringmark::cluster
