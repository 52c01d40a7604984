// The chunks that a tile of rows chose, and which row chose which: every chunk is packed once a tile, a row computes
// only its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "kernels/select_chunks.h"

namespace ringmark::kernels::cpu {

class ChunkUnion {
 public:
  struct Member {
    std::int32_t row;   // of the tile
    std::int32_t slot;  // position of the chunk among the row's choices
  };

  ChunkUnion(std::int64_t most_rows, std::int64_t topk);

  void gather(const Selection& selection, RowRange rows, std::int64_t chooser);

  std::int64_t size() const { return static_cast<std::int64_t>(chunks_.size()); }
  ChunkId chunk(std::int64_t i) const { return chunks_[static_cast<std::size_t>(i)]; }
  // Rows that chose the i-th chunk, ascending.
  std::span<const Member> members(std::int64_t i) const;
  // Those in [first, first + count).
  std::span<const Member> members(std::int64_t i, std::int64_t first, std::int64_t count) const;
  // How many chunks a row of the tile chose.
  std::int64_t chosen_by(std::int64_t row) const { return cursors_[static_cast<std::size_t>(row)]; }

 private:
  std::vector<ChunkId> chunks_;       // ascending
  std::vector<std::int64_t> begins_;  // members of chunk i: [begins_[i], begins_[i + 1])
  std::vector<Member> members_;
  std::vector<std::int32_t> cursors_;  // choices of a row that are in the union
  std::vector<std::int32_t> next_;     // the first one that is not
};

}  // namespace ringmark::kernels::cpu
