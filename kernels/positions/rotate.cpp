#include "kernels/positions/rotate.h"

#include <algorithm>

#include "core/error.h"
#include "core/problem.h"
#include "kernels/positions/rotation.h"

namespace ringmark::kernels {

void rotate(const PositionEncoding& encoding, Side side, const RowsView& rows, std::span<const std::int64_t> positions,
            std::span<std::byte> out, int threads) {
  require(rows.head_dim <= kMaxHeadDim, "a head that rotates has at most kMaxHeadDim elements");
  require(static_cast<std::int64_t>(positions.size()) == rows.rows, "a position a row");
  require(static_cast<std::int64_t>(out.size()) == rows.bytes(), "rotated rows take the room of the rows");
  check_positions(encoding, rows.dtype, positions);
  if (out.data() != rows.data) std::copy_n(rows.data, rows.bytes(), out.data());
  if (!encoding.rotates()) return;
  const Rotation rotation(encoding, side, rows.head_dim);
  const std::int64_t head_bytes = rows.head_dim * size_of(rows.dtype);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    RowAngles angles;
    rotation.find_angles(positions[static_cast<std::size_t>(row)], angles);
    std::byte* head = out.data() + row * rows.heads * head_bytes;
    for (std::int64_t h = 0; h < rows.heads; ++h, head += head_bytes) {
      rotation.turn_head(angles, rows.dtype, head, head);
    }
  }
}

}  // namespace ringmark::kernels
