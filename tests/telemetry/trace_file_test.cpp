#include "cluster/telemetry/trace_file.h"

#include <gtest/gtest.h>

#include "runtime/traced_transport.h"

namespace ringmark::cluster {
namespace {

TEST(TraceFile, events_of_a_rank_by_hand) {
  runtime::Trace trace;
  trace.add("window", "host", 110.0, 5.5);
  trace.add("attend", "gpu compute", 116.0, 2.0);
  trace.add_read({1, 4096, 112.0, 114.25});
  // 10 us behind rank 0 all the time; the first event of the job was at 100 of rank 0's clock.
  const ClockAlignment clock{{0, 10, 1}, {1000, 10, 1}};
  EXPECT_EQ(trace_events(trace, clock, 3, "rank 3 @ n2 GPU 1", 100),
            R"({"name":"process_name","ph":"M","pid":3,"args":{"name":"rank 3 @ n2 GPU 1"}},
{"name":"process_sort_index","ph":"M","pid":3,"args":{"sort_index":3}},
{"name":"thread_name","ph":"M","pid":3,"tid":0,"args":{"name":"host"}},
{"name":"thread_name","ph":"M","pid":3,"tid":1,"args":{"name":"gpu compute"}},
{"name":"window","cat":"stage","ph":"X","pid":3,"tid":0,"ts":20.000,"dur":5.500},
{"name":"attend","cat":"stage","ph":"X","pid":3,"tid":1,"ts":26.000,"dur":2.000},
{"name":"read from rank 1","cat":"read","id":"3.0","ph":"b","pid":3,"tid":0,"ts":22.000,"args":{"bytes":4096}},
{"name":"read from rank 1","cat":"read","id":"3.0","ph":"e","pid":3,"tid":0,"ts":24.250},
{"name":"blocks","cat":"fetch","id":"3.0","ph":"s","pid":1,"tid":0,"ts":22.000},
{"name":"blocks","cat":"fetch","id":"3.0","ph":"f","bp":"e","pid":3,"tid":0,"ts":24.250},
)");
  EXPECT_DOUBLE_EQ(first_event_us(trace, clock), 120);
}

// A transport that counts nothing and reads nothing.
class IdleTransport final : public comm::BlockTransport {
 public:
  std::string_view name() const override { return "idle"; }
  comm::Bytes expose(std::int64_t) override { return {}; }
  void publish() override {}
  std::unique_ptr<comm::PendingReads> get(std::span<const comm::RemoteRead>) override {
    return std::make_unique<Pending>();
  }
  void retire() override {}

 private:
  struct Pending final : comm::PendingReads {
    void wait() override {}
  };
};

TEST(TracedTransport, writes_down_one_read_an_owner_when_it_has_arrived) {
  runtime::Trace trace;
  runtime::TracedTransport transport(std::make_unique<IdleTransport>(), 1, trace);
  std::vector<std::byte> memory(100);
  const comm::Bytes bytes(memory);
  const comm::RemoteRead reads[] = {
      {0, 0, 0, bytes.first(10)}, {2, 0, 0, bytes.first(30)}, {0, 0, 50, bytes.first(5)}, {1, 0, 0, bytes.first(7)}};
  auto pending = transport.get(reads);
  EXPECT_TRUE(trace.reads().empty());
  pending->wait();
  ASSERT_EQ(trace.reads().size(), 2u);  // own blocks are nobody's reads
  EXPECT_EQ(trace.reads()[0].owner, 0);
  EXPECT_EQ(trace.reads()[0].bytes, 15);
  EXPECT_EQ(trace.reads()[1].owner, 2);
  EXPECT_EQ(trace.reads()[1].bytes, 30);
  EXPECT_LE(trace.reads()[0].asked_us, trace.reads()[0].arrived_us);
  transport.get(reads);  // given up: not an arrival
  EXPECT_EQ(trace.reads().size(), 2u);
}

TEST(TraceObserver, is_told_of_stages_though_nothing_is_kept) {
  struct Observer final : runtime::StageObserver {
    void stage_began(std::string_view stage) override { told.append("+").append(stage); }
    void stage_ended(std::string_view stage, std::string_view lane, double) override {
      told.append("-").append(stage).append("/").append(lane);
    }
    std::string told;
  } observer;
  runtime::Trace trace;
  trace.observe_by(&observer);
  trace.keep(false);
  trace.begin("window");
  trace.add("window", "host", 0, 1);
  trace.add("attend", "gpu compute", 0, 1);
  EXPECT_EQ(observer.told, "+window-window/host-attend/gpu compute");
  EXPECT_TRUE(trace.spans().empty());
}

}  // namespace
}  // namespace ringmark::cluster
