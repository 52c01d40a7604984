// Queries visit the keys: every rank sends its queries to each place that holds keys for them, that place attends to
// them, and the partial result (out, lse in fp32) returns and is merged at home, the nearest place's first.
//
// The other way, queries that travel round the ring with their running (out, lse), moves the same bytes and one more
// hop of (out, lse): P - 1 hops and the way home, where visits take P - 1 ways out and P - 1 back. And it takes queries
// to places that hold no keys for them.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <vector>

#include "comm/current_step.h"
#include "kernels/merge_partials.h"
#include "runtime/dense/team_work.h"

namespace ringmark::runtime::dense {
namespace {

// Which of these ascending tokens stand in the chunk, by index.
RowRange rows_in(std::span<const TokenId> tokens, Range<TokenId> slots) {
  const auto first = std::lower_bound(tokens.begin(), tokens.end(), slots.begin);
  return {first - tokens.begin(), std::lower_bound(first, tokens.end(), slots.end) - tokens.begin()};
}

// The tokens at a place that attend, of these of its chunks.
std::vector<TokenId> tokens_of(const partition::SequenceGrid& grid, const Team& team, int place,
                               std::span<const ChunkId> chunks) {
  std::vector<TokenId> tokens;
  for (const ChunkId chunk : chunks) {
    const Range<TokenId> slots = grid.tokens_of(chunk);
    if (team.attending.empty()) {
      for (TokenId token = slots.begin; token < slots.end; ++token) tokens.push_back(token);
      continue;
    }
    const std::vector<TokenId>& there = team.attending[static_cast<std::size_t>(place)];
    const RowRange rows = rows_in(there, slots);
    tokens.insert(tokens.end(), there.begin() + rows.begin, there.begin() + rows.end);
  }
  return tokens;
}

// out [rows, heads, d] and lse [rows, heads] as one message.
class Partials {
 public:
  void resize(std::int64_t rows, std::int64_t heads, std::int64_t head_dim) {
    rows_ = rows, heads_ = heads, head_dim_ = head_dim;
    floats_.resize(static_cast<std::size_t>(rows * heads * (head_dim + 1)));
  }
  comm::Bytes bytes() { return std::as_writable_bytes(std::span(floats_)); }
  TensorView<float, 3> out(std::int64_t first, std::int64_t rows) {
    return {floats_.data() + first * heads_ * head_dim_, {rows, heads_, head_dim_}};
  }
  TensorView<float, 2> lse(std::int64_t first, std::int64_t rows) {
    return {floats_.data() + (rows_ * head_dim_ + first) * heads_, {rows, heads_}};
  }

 private:
  std::int64_t rows_ = 0, heads_ = 0, head_dim_ = 0;
  std::vector<float> floats_;
};

// Queries that are here as guests.
struct Guests {
  std::vector<TokenId> tokens;
  std::vector<std::byte> queries;
  Partials partials;
};

class Visits {
 public:
  explicit Visits(const TeamWork& work) : work_(work), team_(work.team), grid_(work.queries.grid) {
    for (const ChunkId chunk : team_.own_chunks()) {
      rows_.push_back(rows_in(work.queries.tokens, grid_.tokens_of(chunk)));
    }
  }

  void attend_all() {
    work_.progress.begin("attend", team_.size() * work_.rows());
    if (team_.size() > 1) send_queries(1);
    attend(work_, team_.own_chunks());
    kernels::close_softmax(work_.softmax);
    work_.progress.advance(work_.rows());
    for (int step = 1; step < team_.size(); ++step) {
      const comm::EnterStep entered("visit", step);
      visiting_->wait();
      if (step + 1 < team_.size()) send_queries(step + 1);
      attend_guests(guests(step));
      if (step > 1) merge_returned(step - 1);
      return_partials(step);
      work_.progress.advance((step + 1) * work_.rows());
    }
    if (team_.size() > 1) merge_returned(team_.size() - 1);
    work_.progress.end();
  }

 private:
  std::int64_t heads() const { return work_.queries.queries.heads; }
  std::int64_t head_dim() const { return work_.queries.queries.head_dim; }
  Guests& guests(int step) { return guests_[static_cast<std::size_t>(step % 2)]; }
  int host(int step) const { return team_.place_after(team_.place, step); }
  int guest(int step) const { return team_.place_after(team_.place, -step); }

  void send_queries(int step) {
    const std::int64_t row_bytes = heads() * head_dim() * size_of(work_.queries.queries.dtype);
    std::vector<std::byte>& sent = sent_[static_cast<std::size_t>(step % 2)];
    sent.clear();
    for_each_visiting(host(step), [&](std::int64_t first, std::int64_t rows) {
      const std::byte* begin = work_.queries.queries.row(first, 0);
      sent.insert(sent.end(), begin, begin + rows * row_bytes);
    });
    Guests& next = guests(step);
    next.tokens = tokens_of(grid_, team_, guest(step), visiting_queries(grid_, team_, guest(step), team_.place));
    next.queries.resize(next.tokens.size() * static_cast<std::size_t>(row_bytes));
    visiting_.emplace(work_, "visits of queries");
    visiting_->send(host(step), sent);
    visiting_->receive(guest(step), next.queries);
    visiting_->start();
    work_.received.queries += static_cast<std::int64_t>(next.queries.size());
  }

  void attend_guests(Guests& guests) {
    const auto rows = static_cast<std::int64_t>(guests.tokens.size());
    guests.partials.resize(rows, heads(), head_dim());
    std::vector<float> sums(static_cast<std::size_t>(rows * heads()));
    const kernels::OpenSoftmax softmax{
        guests.partials.out(0, rows), guests.partials.lse(0, rows), {sums.data(), {rows, heads()}}};
    const RowsView queries{guests.queries.data(), work_.queries.queries.dtype, rows, heads(), head_dim()};
    const auto span = work_.clock.time("attend");
    kernels::start_softmax(softmax);
    kernels::attend_causal(
        {work_.queries.problem, grid_, queries, guests.tokens, work_.queries.groups, work_.queries.first_head},
        {0, rows}, team_.own_chunks(), work_.blocks, softmax, work_.threads);
    kernels::close_softmax(softmax);
  }

  void return_partials(int step) {
    std::int64_t rows = 0;
    for_each_visiting(host(step), [&](std::int64_t, std::int64_t count) { rows += count; });
    returned_.resize(rows, heads(), head_dim());
    returning_.emplace(work_, "return of partials");
    returning_->send(guest(step), guests(step).partials.bytes());
    returning_->receive(host(step), returned_.bytes());
    returning_->start();
    work_.received.partials += static_cast<std::int64_t>(returned_.bytes().size());
  }

  void merge_returned(int step) {
    returning_->wait();
    const auto span = work_.clock.time("merge");
    std::int64_t at = 0;
    for_each_visiting(host(step), [&](std::int64_t first, std::int64_t rows) {
      const TensorView<float, 3> out = returned_.out(at, rows);
      const TensorView<float, 2> lse = returned_.lse(at, rows);
      kernels::merge_partials({work_.softmax.out.at(first), {rows, heads(), head_dim()}},
                              {work_.softmax.top.at(first), {rows, heads()}}, {out.data(), {rows, heads(), head_dim()}},
                              {lse.data(), {rows, heads()}});
      at += rows;
    });
  }

  // Own rows that visit a place, a chunk at a time: visit(first row, rows).
  template <class Visit>
  void for_each_visiting(int place, Visit visit) const {
    for (std::size_t n = 0; n < rows_.size(); ++n) {
      const ChunkId chunk = team_.own_chunks()[n];
      if (!rows_[n].empty() && finds_keys(grid_, team_, place, chunk)) visit(rows_[n].begin, rows_[n].size());
    }
  }

  const TeamWork& work_;
  const Team& team_;
  const partition::SequenceGrid& grid_;
  std::vector<RowRange> rows_;  // by own chunk
  std::array<std::vector<std::byte>, 2> sent_;
  std::array<Guests, 2> guests_;
  Partials returned_;
  std::optional<Exchange> visiting_;
  std::optional<Exchange> returning_;
};

}  // namespace

void attend_by_visits(const TeamWork& work) { Visits(work).attend_all(); }

}  // namespace ringmark::runtime::dense
