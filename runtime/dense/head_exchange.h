// The two all-to-alls of Ulysses: ranks of a group trade their rows of all heads for all rows of their heads, and after
// the attention the results for the rows' owners.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "core/ids.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "partition/layout.h"
#include "runtime/dense/head_shares.h"
#include "runtime/dense/team_work.h"

namespace ringmark::runtime::dense {

class HeadExchange {
 public:
  // Groups are runs of `group` ranks.
  HeadExchange(comm::Communicator& communicator, const AttentionProblem& problem, const partition::Layout& layout,
               int group);

  const HeadShare& share() const { return share_at(place_); }
  // Rows of the whole group, member by member, each in the order of its shard.
  std::vector<TokenId> tokens() const;

  // Collective. `own_blocks` are [chunks of the shard][Hkv]. Fills the queries [rows of the group, heads of the share,
  // d] and the blocks of the group's chunks.
  void bring(const RowsView& queries, comm::ConstBytes own_blocks, ReceivedBytes& received);
  RowsView queries() const {
    return {queries_.data(), problem_.dtype, rows_of_group(), share().heads.size(), problem_.head_dim};
  }
  void list_in(kernels::BlockTable& table) const;

  // Collective: from [rows of the group, heads of the share(, d)] to [rows of the shard, H(, d)].
  void give_back(TensorView<const float, 3> out, TensorView<const float, 2> lse, TensorView<float, 3> own_out,
                 TensorView<float, 2> own_lse, std::chrono::duration<double> allowance, ReceivedBytes& received);

 private:
  int rank_of(int member) const { return first_rank_ + member; }
  std::int64_t rows_of(int member) const { return layout_.token_count(RankId(rank_of(member))); }
  std::int64_t chunks_of(int member) const {
    return static_cast<std::int64_t>(layout_.chunks_of(RankId(rank_of(member))).size());
  }
  std::int64_t rows_of_group() const;
  const HeadShare& share_at(int member) const { return shares_[static_cast<std::size_t>(member)]; }

  comm::Communicator& communicator_;
  const AttentionProblem& problem_;
  const partition::Layout& layout_;
  int group_;
  int first_rank_;
  int place_;
  std::vector<HeadShare> shares_;  // by member
  std::vector<std::byte> queries_;
  std::vector<std::byte> blocks_;  // [members][chunks][kv heads of the share]
};

}  // namespace ringmark::runtime::dense
