#include "runtime/dense/head_exchange.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace ringmark::runtime::dense {
namespace {

// Messages between the members of a group, cut out of one buffer each way.
class GroupMessages {
 public:
  GroupMessages(comm::Communicator& communicator, int first_rank)
      : communicator_(communicator),
        first_rank_(first_rank),
        send_(static_cast<std::size_t>(communicator.size())),
        receive_(send_.size()) {}

  void add(int member, comm::ConstBytes sent, comm::Bytes received) {
    send_[static_cast<std::size_t>(first_rank_ + member)] = sent;
    receive_[static_cast<std::size_t>(first_rank_ + member)] = received;
  }
  // Collective over all ranks, as the group's others are no part of it.
  void exchange(std::string_view stage, std::chrono::duration<double> allowance) {
    communicator_.start_all_to_all(stage, send_, receive_)->wait(allowance);
  }
  // Without what a rank gives itself.
  std::int64_t received() const {
    std::int64_t sum = 0;
    for (std::size_t r = 0; r < receive_.size(); ++r) {
      if (static_cast<int>(r) != communicator_.rank()) sum += static_cast<std::int64_t>(receive_[r].size());
    }
    return sum;
  }

 private:
  comm::Communicator& communicator_;
  int first_rank_;
  std::vector<comm::ConstBytes> send_;
  std::vector<comm::Bytes> receive_;
};

// The front of a buffer, which then begins behind it.
template <class Message>
Message take(Message& rest, std::int64_t bytes) {
  const Message front = rest.first(static_cast<std::size_t>(bytes));
  rest = rest.subspan(front.size());
  return front;
}

// From rows of some heads into the same rows of all heads; `width` floats a head.
void scatter_heads(const float* some, std::int64_t rows, Range<std::int64_t> heads, std::int64_t width, float* all,
                   std::int64_t all_heads) {
  const std::int64_t floats = heads.size() * width;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(some + row * floats, floats, all + (row * all_heads + heads.begin) * width);
  }
}

}  // namespace

HeadExchange::HeadExchange(comm::Communicator& communicator, const AttentionProblem& problem,
                           const partition::Layout& layout, int group)
    : communicator_(communicator),
      problem_(problem),
      layout_(layout),
      group_(group),
      first_rank_(communicator.rank() / group * group),
      place_(communicator.rank() % group) {
  for (int member = 0; member < group; ++member) shares_.push_back(head_share(problem, member, group));
}

std::int64_t HeadExchange::rows_of_group() const {
  std::int64_t rows = 0;
  for (int member = 0; member < group_; ++member) rows += rows_of(member);
  return rows;
}

std::vector<TokenId> HeadExchange::tokens() const {
  std::vector<TokenId> tokens;
  for (int member = 0; member < group_; ++member) {
    const std::vector<TokenId> of_member = layout_.tokens_of(RankId(rank_of(member)));
    tokens.insert(tokens.end(), of_member.begin(), of_member.end());
  }
  return tokens;
}

void HeadExchange::bring(const RowsView& queries, comm::ConstBytes own_blocks, ReceivedBytes& received) {
  const std::int64_t head_bytes = problem_.head_dim * size_of(problem_.dtype);
  const std::int64_t block_bytes = kernels::BlockShape::of(problem_).bytes();
  const std::int64_t own_chunks = chunks_of(place_);
  std::vector<std::byte> sent_queries, sent_blocks;
  for (const HeadShare& to : shares_) {
    for (std::int64_t row = 0; row < queries.rows; ++row) {
      const std::byte* begin = queries.row(row, to.heads.begin);
      sent_queries.insert(sent_queries.end(), begin, begin + to.heads.size() * head_bytes);
    }
    for (std::int64_t chunk = 0; chunk < own_chunks; ++chunk) {
      const auto first = own_blocks.begin() + (chunk * problem_.kv_heads + to.kv_heads.begin) * block_bytes;
      sent_blocks.insert(sent_blocks.end(), first, first + to.kv_heads.size() * block_bytes);
    }
  }
  std::int64_t chunks = 0;
  for (int member = 0; member < group_; ++member) chunks += chunks_of(member);
  queries_.resize(static_cast<std::size_t>(rows_of_group() * share().heads.size() * head_bytes));
  blocks_.resize(static_cast<std::size_t>(chunks * share().kv_heads.size() * block_bytes));

  GroupMessages of_queries(communicator_, first_rank_), of_blocks(communicator_, first_rank_);
  comm::ConstBytes queries_out(sent_queries), blocks_out(sent_blocks);
  comm::Bytes queries_in(queries_), blocks_in(blocks_);
  for (int member = 0; member < group_; ++member) {
    const HeadShare& theirs = share_at(member);
    of_queries.add(member, take(queries_out, queries.rows * theirs.heads.size() * head_bytes),
                   take(queries_in, rows_of(member) * share().heads.size() * head_bytes));
    of_blocks.add(member, take(blocks_out, own_chunks * theirs.kv_heads.size() * block_bytes),
                  take(blocks_in, chunks_of(member) * share().kv_heads.size() * block_bytes));
  }
  of_queries.exchange("exchange of query heads", {});
  of_blocks.exchange("exchange of key heads", {});
  received.queries += of_queries.received();
  received.keys += of_blocks.received();
}

void HeadExchange::list_in(kernels::BlockTable& table) const {
  const std::byte* block = blocks_.data();
  for (int member = 0; member < group_; ++member) {
    for (const ChunkId chunk : layout_.chunks_of(RankId(rank_of(member)))) {
      for (std::int64_t g = 0; g < share().kv_heads.size(); ++g, block += table.shape().bytes()) {
        table.set(chunk, g, block);
      }
    }
  }
}

void HeadExchange::give_back(TensorView<const float, 3> out, TensorView<const float, 2> lse,
                             TensorView<float, 3> own_out, TensorView<float, 2> own_lse,
                             std::chrono::duration<double> allowance, ReceivedBytes& received) {
  const std::int64_t own_rows = rows_of(place_), d = problem_.head_dim;
  std::vector<float> came_out(static_cast<std::size_t>(own_rows * problem_.heads * d));
  std::vector<float> came_lse(static_cast<std::size_t>(own_rows * problem_.heads));
  GroupMessages of_out(communicator_, first_rank_), of_lse(communicator_, first_rank_);
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  auto out_sent = std::as_bytes(std::span(out.data(), static_cast<std::size_t>(out.dim(0) * out.dim(1) * d)));
  auto lse_sent = std::as_bytes(std::span(lse.data(), static_cast<std::size_t>(lse.dim(0) * lse.dim(1))));
  comm::Bytes out_in = std::as_writable_bytes(std::span(came_out)),
              lse_in = std::as_writable_bytes(std::span(came_lse));
  for (int member = 0; member < group_; ++member) {
    const std::int64_t sent = rows_of(member) * share().heads.size() * kFloat;
    const std::int64_t comes = own_rows * share_at(member).heads.size() * kFloat;
    of_out.add(member, take<comm::ConstBytes>(out_sent, sent * d), take(out_in, comes * d));
    of_lse.add(member, take<comm::ConstBytes>(lse_sent, sent), take(lse_in, comes));
  }
  of_out.exchange("return of outputs", allowance);
  of_lse.exchange("return of lse", allowance);
  received.partials += of_out.received() + of_lse.received();

  for (const HeadShare& from : shares_) {
    // Members' messages stand behind each other, those of the heads before this one's first.
    scatter_heads(came_out.data() + own_rows * from.heads.begin * d, own_rows, from.heads, d, own_out.data(),
                  problem_.heads);
    scatter_heads(came_lse.data() + own_rows * from.heads.begin, own_rows, from.heads, 1, own_lse.data(),
                  problem_.heads);
  }
}

}  // namespace ringmark::runtime::dense
