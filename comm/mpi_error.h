// MPI return codes as Error(kPeer).
#pragma once

#include <string>
#include <string_view>

namespace ringmark::comm {

std::string mpi_error_text(int code);

// `operation` names the MPI function.
void check_mpi(int code, int rank, std::string_view stage, std::string_view operation);

}  // namespace ringmark::comm
