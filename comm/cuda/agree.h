// What all ranks must know before one of them may give up: a rank that throws alone leaves the others waiting.
#pragma once

#include <string_view>

#include "comm/communicator.h"

namespace ringmark::comm::cuda {

// Collective: when a rank brings trouble, every rank throws Error(kEnvironment) with the first one's words. Empty means
// none.
void agree(Communicator& communicator, std::string_view stage, std::string_view trouble);

}  // namespace ringmark::comm::cuda
