#include "cluster/telemetry/run_state.h"

#include <algorithm>

#include "comm/received_bytes.h"

namespace ringmark::cluster {
namespace {

constexpr std::string_view kHostLane = "host";

}  // namespace

StageTotals& RunState::totals_of(std::string_view stage, std::string_view lane) {
  const auto found = std::find_if(totals_.begin(), totals_.end(), [&](const StageTotals& totals) {
    return totals.stage == stage && totals.lane == lane;
  });
  if (found != totals_.end()) return *found;
  return totals_.emplace_back(StageTotals{std::string(stage), std::string(lane)});
}

bool RunState::begin(std::string_view stage) {
  const std::lock_guard lock(mutex_);
  const auto [entry, is_first] = received_.insert_or_assign(std::string(stage), comm::ReceivedBytes::total());
  totals_of(stage, kHostLane);
  return is_first;
}

bool RunState::end(std::string_view stage, std::string_view lane, double seconds, StageTotals& span) {
  const std::lock_guard lock(mutex_);
  const auto began = received_.find(stage);
  const bool on_host = lane == kHostLane && began != received_.end();
  span = {std::string(stage), std::string(lane), seconds, on_host ? comm::ReceivedBytes::total() - began->second : 0,
          1};
  StageTotals& totals = totals_of(stage, lane);
  totals.seconds += span.seconds;
  totals.received_bytes += span.received_bytes;
  return ++totals.spans == 1;
}

std::vector<StageTotals> RunState::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

void RunState::progress(std::string_view stage, std::int64_t done, std::int64_t total) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(progress_.begin(), progress_.end(),
                                  [&](const StageProgress& progress) { return progress.stage == stage; });
  StageProgress& progress = found != progress_.end() ? *found : progress_.emplace_back();
  progress = {std::string(stage), done, total};
}

std::vector<StageProgress> RunState::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

void ObservedProgress::begin(std::string_view stage, std::int64_t total) {
  stage_ = stage;
  total_ = total;
  state_.progress(stage_, 0, total_);
  shown_.begin(stage, total);
}

void ObservedProgress::advance(std::int64_t done) {
  state_.progress(stage_, done, total_);
  shown_.advance(done);
}

}  // namespace ringmark::cluster
