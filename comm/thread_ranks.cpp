#include "comm/thread_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "comm/copy_bytes.h"
#include "comm/peer_failure.h"
#include "comm/rank_order_reduce.h"
#include "core/error.h"

namespace ringmark::comm {
namespace {

using Parcel = std::vector<std::byte>;

// What one rank brings to one collective: a parcel for every rank, or a single one for all. A copy, so that a rank that
// gives up and unwinds leaves nothing behind that a late rank could still read.
struct Post {
  std::vector<Parcel> parcels;
  const Parcel& parcel_for(std::size_t rank) const { return parcels.size() == 1 ? parcels[0] : parcels[rank]; }
};
using PostPointer = std::shared_ptr<const Post>;

// Where the ranks of one job meet. Every collective is one exchange: each rank posts and takes the posts of all.
class Meeting {
 public:
  Meeting(int ranks, std::chrono::duration<double> timeout)
      : ranks_(static_cast<std::size_t>(ranks)), timeout_(timeout), next_round_(ranks_), gone_(ranks_) {}

  std::size_t ranks() const { return ranks_; }
  std::chrono::duration<double> timeout() const { return timeout_; }

  std::vector<PostPointer> exchange(std::size_t rank, std::string_view stage, PostPointer mine,
                                    std::chrono::duration<double> allowance = {}) {
    return take(rank, post(rank, std::move(mine)), stage, allowance);
  }

  // Returns the number of the round.
  std::uint64_t post(std::size_t rank, PostPointer mine) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t number = next_round_[rank]++;
    Round& round = rounds_[number];
    round.posts.resize(ranks_);
    round.posts[rank] = std::move(mine);
    if (++round.posted == ranks_) changed_.notify_all();
    return number;
  }

  std::vector<PostPointer> take(std::size_t rank, std::uint64_t number, std::string_view stage,
                                std::chrono::duration<double> allowance) {
    const auto begin = Clock::now();
    std::unique_lock lock(mutex_);
    Round& round = rounds_[number];
    changed_.wait_until(lock, begin + std::chrono::duration_cast<Clock::duration>(timeout_ + allowance),
                        [&] { return round.posted == ranks_ || !failure_.empty() || waits_for_gone(round); });
    if (round.posted < ranks_) give_up(round, rank, stage, Clock::now() - begin);
    std::vector<PostPointer> posts = round.posts;
    if (++round.taken == ranks_) rounds_.erase(number);
    return posts;
  }

  // Wakes every rank that waits; none will meet again.
  void fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = why;
    changed_.notify_all();
  }

  // The rank takes part in no further collective.
  void leave(std::size_t rank) {
    const std::lock_guard lock(mutex_);
    gone_[rank] = true;
    changed_.notify_all();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Round {
    std::vector<PostPointer> posts;
    std::size_t posted = 0;
    std::size_t taken = 0;
  };

  bool waits_for_gone(const Round& round) const {
    for (std::size_t r = 0; r < ranks_; ++r) {
      if (gone_[r] && round.posts[r] == nullptr) return true;
    }
    return false;
  }

  [[noreturn]] void give_up(const Round& round, std::size_t rank, std::string_view stage, Clock::duration waited) {
    std::vector<int> missing;
    for (std::size_t r = 0; r < ranks_; ++r) {
      if (round.posts[r] == nullptr) missing.push_back(static_cast<int>(r));
    }
    std::string text = waited_text(static_cast<int>(rank), stage, waited, missing);
    if (!failure_.empty()) {
      text += fmt::format(" ({})", failure_);
    } else if (waits_for_gone(round)) {
      text += " (which left)";
    }
    if (failure_.empty()) failure_ = text;
    changed_.notify_all();
    fail_peer(text);
  }

  const std::size_t ranks_;
  const std::chrono::duration<double> timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Round> rounds_;  // a fast rank may be ahead of a slow one
  std::vector<std::uint64_t> next_round_;
  std::vector<bool> gone_;
  std::string failure_;
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(std::shared_ptr<Meeting> meeting, int rank)
      : meeting_(std::move(meeting)), rank_(static_cast<std::size_t>(rank)) {}

  int rank() const override { return static_cast<int>(rank_); }
  int size() const override { return static_cast<int>(meeting_->ranks()); }
  int host_ranks() const override { return size(); }
  bool shares_address_space() const override { return true; }
  std::chrono::duration<double> timeout() const override { return meeting_->timeout(); }

  using Communicator::barrier;
  void barrier(std::string_view stage, std::chrono::duration<double> allowance) override {
    meeting_->exchange(rank_, stage, std::make_shared<Post>(), allowance);
  }

  void all_gather(std::string_view stage, ConstBytes mine, std::span<const Bytes> all) override {
    require(all.size() == meeting_->ranks(), "a collective has one buffer per rank");
    auto post = std::make_shared<Post>();
    post->parcels.emplace_back(mine.begin(), mine.end());
    take(stage, meeting_->exchange(rank_, stage, post), all);
  }

  void all_to_all(std::string_view stage, std::span<const ConstBytes> send, std::span<const Bytes> receive) override {
    ThreadRank::start_all_to_all(stage, send, receive)->wait({});
  }

  std::unique_ptr<StartedExchange> start_all_to_all(std::string_view stage, std::span<const ConstBytes> send,
                                                    std::span<const Bytes> receive) override {
    require(send.size() == meeting_->ranks() && receive.size() == send.size(), "a collective has one buffer per rank");
    auto post = std::make_shared<Post>();
    for (const ConstBytes parcel : send) post->parcels.emplace_back(parcel.begin(), parcel.end());
    return std::make_unique<StartedRound>(*this, meeting_->post(rank_, std::move(post)), stage, receive);
  }

  void all_reduce_sum(std::string_view stage, std::span<std::int64_t> values) override {
    all_reduce_in_rank_order(*this, stage, values, sum_of);
  }
  void all_reduce_max(std::string_view stage, std::span<std::int64_t> values) override {
    all_reduce_in_rank_order(*this, stage, values, max_of<std::int64_t>);
  }
  void all_reduce_max(std::string_view stage, std::span<double> values) override {
    all_reduce_in_rank_order(*this, stage, values, max_of<double>);
  }

  // The job is a call in somebody's process: the other ranks fail, the process lives on.
  void abort(int code) noexcept override {
    meeting_->fail(fmt::format("rank {} aborted the job with code {}", rank_, code));
  }

 private:
  class StartedRound final : public StartedExchange {
   public:
    StartedRound(ThreadRank& rank, std::uint64_t number, std::string_view stage, std::span<const Bytes> receive)
        : rank_(rank), number_(number), stage_(stage), receive_(receive.begin(), receive.end()) {}

    void wait(std::chrono::duration<double> allowance) override {
      rank_.take(stage_, rank_.meeting_->take(rank_.rank_, number_, stage_, allowance), receive_);
    }

   private:
    ThreadRank& rank_;
    std::uint64_t number_;
    std::string_view stage_;
    std::vector<Bytes> receive_;
  };

  void take(std::string_view stage, const std::vector<PostPointer>& posts, std::span<const Bytes> receive) {
    for (std::size_t r = 0; r < posts.size(); ++r) {
      const Parcel& parcel = posts[r]->parcel_for(rank_);
      if (parcel.size() != receive[r].size()) {
        fail_peer(wrong_size_text(rank(), stage, static_cast<int>(r), static_cast<std::int64_t>(parcel.size()),
                                  static_cast<std::int64_t>(receive[r].size())));
      }
      copy_bytes(parcel, receive[r]);
    }
  }

  std::shared_ptr<Meeting> meeting_;
  std::size_t rank_;
};

// Keeps the exception that came first in time: those that it causes on other ranks only tell of it.
class FirstException {
 public:
  void keep(std::exception_ptr exception) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = std::move(exception);
  }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
};

void run_rank(const std::shared_ptr<Meeting>& meeting, int rank, const std::function<void(Communicator&)>& body,
              FirstException& first) {
  try {
    ThreadRank communicator(meeting, rank);
    body(communicator);
    meeting->leave(static_cast<std::size_t>(rank));
  } catch (const std::exception& error) {
    first.keep(std::current_exception());
    meeting->fail(fmt::format("rank {} failed: {}", rank, error.what()));
  } catch (...) {
    first.keep(std::current_exception());
    meeting->fail(fmt::format("rank {} failed", rank));
  }
}

}  // namespace

std::unique_ptr<Communicator> make_single_rank() {
  return std::make_unique<ThreadRank>(std::make_shared<Meeting>(1, std::chrono::seconds(60)), 0);
}

void run_thread_ranks(int ranks, const std::function<void(Communicator&)>& body,
                      std::chrono::duration<double> timeout) {
  require(ranks >= 1, "a job has at least one rank");
  const auto meeting = std::make_shared<Meeting>(ranks, timeout);
  FirstException first;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] { run_rank(meeting, rank, body, first); });
    }
  }
  first.rethrow();
}

}  // namespace ringmark::comm
