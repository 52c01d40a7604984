// The words for a peer that let this rank down: the same on every communicator and transport.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ringmark::comm {

// " (layer 0, stage attend, attend wave 7)": where this thread is in its run, for the end of a line; empty when it is
// not known.
std::string place_text();

// "rank 2: stage 'landmarks': waited 5.0 s for ranks 0, 3", and the place
std::string waited_text(int rank, std::string_view stage, std::chrono::duration<double> waited,
                        std::span<const int> peers);

// "rank 2: stage 'landmarks': rank 0 sent 8 bytes where 16 were expected"
std::string wrong_size_text(int rank, std::string_view stage, int peer, std::int64_t sent, std::int64_t expected);

}  // namespace ringmark::comm
