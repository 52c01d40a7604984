#include "kernels/cpu/row_tiles.h"

#include <algorithm>

namespace ringmark::kernels::cpu {

std::vector<RowRange> cut_tiles(const partition::SequenceGrid& grid, std::span<const TokenId> tokens, RowRange rows,
                                std::int64_t most_tokens, std::int64_t segment) {
  std::vector<RowRange> tiles;
  TokenId end;  // of what the tile must not cross
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const TokenId token = tokens[static_cast<std::size_t>(row)];
    const bool continues = !tiles.empty() && tiles.back().size() < most_tokens && token < end &&
                           token == tokens[static_cast<std::size_t>(row - 1)] + 1;
    if (continues) {
      tiles.back().end = row + 1;
    } else {
      const Range<TokenId> document = grid.document_of(token).tokens;
      const std::int64_t begun = (token - document.begin) / segment * segment;
      end = document.size() - begun > segment ? document.begin + begun + segment : document.end;
      tiles.push_back({row, row + 1});
    }
  }
  return tiles;
}

}  // namespace ringmark::kernels::cpu
