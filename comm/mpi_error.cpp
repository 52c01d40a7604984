#include "comm/mpi_error.h"

#include <fmt/format.h>
#include <mpi.h>

#include <array>

#include "core/error.h"

namespace ringmark::comm {

std::string mpi_error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) return fmt::format("MPI error {}", code);
  return std::string(text.data(), static_cast<std::size_t>(length));
}

void check_mpi(int code, int rank, std::string_view stage, std::string_view operation) {
  if (code == MPI_SUCCESS) return;
  fail_peer(fmt::format("rank {}: stage '{}': {} failed: {}", rank, stage, operation, mpi_error_text(code)));
}

}  // namespace ringmark::comm
